"""Every message that crosses a process boundary: length-prefixed CBOR, bytes in, messages out."""
