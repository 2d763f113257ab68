"""The trajectory API from the other side: environments deliver groups to it, trainers lease batches from it."""
