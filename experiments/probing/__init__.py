"""Every probe at every site of one model variant, in one stream."""
