/* What NVML answers for a GPU with memory errors that runs hot. */
#include <string.h>

int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned int flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char* nvmlErrorString(int error) { return "Not Supported"; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  *device = (void*)0x1;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void* device, int error_type, int counter_type, unsigned long long* count) {
  *count = error_type == 1 && counter_type == 0 ? 3 : 0; /* uncorrected, volatile */
  return 0;
}
int nvmlDeviceGetRemappedRows(void* device, unsigned int* correctable, unsigned int* uncorrectable,
                              unsigned int* is_pending, unsigned int* has_failed) {
#ifdef OLD_GPU
  return 3; /* not supported */
#endif
  *correctable = 0, *uncorrectable = 2, *is_pending = 1, *has_failed = 0;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  *reasons = 0x40 | 0x1; /* hardware thermal slowdown; idle, which is none */
  return 0;
}
