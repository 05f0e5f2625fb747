"""The only place that talks to Kafka with aiokafka."""
