"""Images on this machine: unpacked, baked, and applied to a fresh sandbox."""
