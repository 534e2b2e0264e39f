/* A library that only takes room in a loader cache; its SONAME is overwritten for each copy. */
int gpu_agent_filler(void) { return 0; }
