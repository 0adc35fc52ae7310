"""One HTML page for one run: `data` and `heads_page` say what goes in, `page`, `heads_page` and
`findings` make the pages."""
