"""mega beside the bare client and its nearest peers, measured in one interleaved run."""
