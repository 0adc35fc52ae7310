"""One HTML page for one run: `data` and `heads_data` say what goes in, `page` and `heads_page`
make the page."""
