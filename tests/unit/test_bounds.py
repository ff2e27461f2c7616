"""What a record may become is bounded, and no value ends a batch."""
