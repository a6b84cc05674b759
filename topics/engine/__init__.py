"""The rules of the product, pure: no files, no sockets, no clocks, no trio. Time is an argument."""
