"""The Spark data source: the only layer that knows pyspark."""
