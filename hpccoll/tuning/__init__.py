"""What plans took on this machine: measured by `hpccoll tune`, read when a communicator is first used."""
