"""One HTML page for one run: `data` says what goes in, `page.render` makes the page."""
