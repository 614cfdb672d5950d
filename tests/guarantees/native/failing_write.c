// Fails the nth write to a file: for LD_PRELOAD.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char target[PATH_MAX];
static long failing_from;
static long writes;
static long failed;
static int for_ever;
static int error_number;  // 0: a part is written, and what is tried after it fails for want of room
static int after_a_part;

// The nth write to `path` from now on fails, and with `forever` all that follow; 0: none does.
void fail_write(const char* path, long nth, int forever, int error) {
  strncpy(target, path, sizeof target - 1);
  failing_from = nth;
  for_ever = forever;
  error_number = error;
  writes = failed = after_a_part = 0;
}

// How many lines could not be written.
long writes_failed(void) { return failed; }

static int is_target(int fd) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = '\0';
  return strcmp(path, target) == 0;
}

ssize_t write(int fd, const void* data, size_t bytes) {
  static ssize_t (*real_write)(int, const void*, size_t);
  if (real_write == NULL) real_write = (ssize_t(*)(int, const void*, size_t))dlsym(RTLD_NEXT, "write");
  if (failing_from == 0 || !is_target(fd)) return real_write(fd, data, bytes);
  if (after_a_part) {
    after_a_part = 0;
    errno = ENOSPC;
    return -1;
  }
  ++writes;
  if (writes != failing_from && !(for_ever && writes > failing_from)) return real_write(fd, data, bytes);
  ++failed;
  if (error_number == 0) {
    after_a_part = 1;
    return real_write(fd, data, bytes / 2);
  }
  errno = error_number;
  return -1;
}
