"""What a Cluster and a TrainingJob document may say: the fields, their types and their bounds."""
