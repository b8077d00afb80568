"""Show the launch buttons only where the book knows the address of its repository.

Jupyter Book puts the address of its own repository where ``_config.yml`` gives none, and the
theme fails on an empty one.
"""

from __future__ import annotations

from typing import Any


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("config-inited", _drop_launch_buttons)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _drop_launch_buttons(app: Any, config: Any) -> None:
    if not config.html_theme_options.get("repository_url"):
        config.html_theme_options["launch_buttons"] = {}
