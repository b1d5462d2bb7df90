"""The judgement on a silence: hung, or waiting for something that may still end by itself."""
