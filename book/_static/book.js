// Small repairs of the theme, so that the book reads well from a file, by keyboard and by ear.
"use strict";

// Search results carry a summary that is fetched, which a page opened from a file may not do.
if (location.protocol === "file:" && window.DOCUMENTATION_OPTIONS) {
  window.DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}

// What scrolls inside its own box must be reachable by keyboard, and only what scrolls.
function markScrollable() {
  const boxes = ".bd-article pre, .bd-article .pst-scrollable-table-container, "
    + ".bd-article mjx-container[display='true']";
  for (const box of document.querySelectorAll(boxes)) {
    if (box.scrollWidth > box.clientWidth + 1) {
      box.tabIndex = 0;
    } else if (box.tabIndex === 0) {
      box.removeAttribute("tabindex");
    }
  }
}

// A list whose items are no list items says nothing to those who listen.
function mendRoles() {
  for (const list of document.querySelectorAll("div.citation-list[role='list']")) {
    list.removeAttribute("role");
  }
}

document.addEventListener("DOMContentLoaded", () => {
  mendRoles();
  const mathematics = window.MathJax?.startup?.promise ?? Promise.resolve();
  mathematics.then(markScrollable);
  window.addEventListener("load", () => {
    (window.MathJax?.startup?.promise ?? Promise.resolve()).then(markScrollable);
  });
  let pending;
  window.addEventListener("resize", () => {
    clearTimeout(pending);
    pending = setTimeout(markScrollable, 150);
  });
});
