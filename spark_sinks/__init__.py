"""The Spark edge of topics. Reserved: the source and the sinks are not part of this release."""
