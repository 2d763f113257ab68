#!/bin/bash
# The repaired file, which is all that counts. Runs beside what the agent left; all it prints is data.
head -c 20000 services.ini
