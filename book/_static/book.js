// Small repairs of the theme, so that the book reads well from a file, by keyboard and by ear.
"use strict";

// Search results carry a summary that is fetched, which a page opened from a file may not do.
if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}

// What scrolls inside its own box must be reachable by keyboard, and only what scrolls.
function markScrollable() {
  const boxes = ".bd-article pre, .bd-article .pst-scrollable-table-container, .bd-article .text_html, "
    + ".bd-article mjx-container[display='true']";
  for (const box of document.querySelectorAll(boxes)) {
    if (box.scrollWidth > box.clientWidth) {
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

// The theme wires the menus of small screens to the buttons of its own bar, which the book hides.
function wireMenus() {
  const narrow = { primary: "(max-width: 991.98px)", secondary: "(max-width: 1199.98px)" };
  for (const [side, width] of Object.entries(narrow)) {
    const wired = document.querySelector(`header.bd-header .${side}-toggle`);
    const shown = document.querySelector(`.bd-header-article .${side}-toggle`);
    shown?.addEventListener("click", (event) => {
      if (wired && matchMedia(width).matches) {
        event.preventDefault();
        event.stopImmediatePropagation();
        wired.click();
      }
    }, { capture: true });
  }
}

document.addEventListener("DOMContentLoaded", () => {
  mendRoles();
  wireMenus();
  // A menu over the page has done its work once a place in the page is chosen.
  for (const menu of document.querySelectorAll("dialog.pst-sidebar-modal, dialog[id$='-modal']")) {
    menu.addEventListener("click", (event) => {
      if (event.target.closest("a[href^='#']")) menu.close();
    });
  }
  let pending;
  const markSoon = () => {
    clearTimeout(pending);
    pending = setTimeout(markScrollable, 100);
  };
  window.addEventListener("load", () => {
    (window.MathJax?.startup?.promise ?? Promise.resolve()).then(markScrollable);
  });
  // Letters that arrive late change the width of a formula.
  document.fonts.addEventListener("loadingdone", markScrollable);
  window.addEventListener("resize", markSoon);
});
