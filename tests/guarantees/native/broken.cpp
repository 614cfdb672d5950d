// Wrong in three ways, one at a time: to see that the sanitizers say so. Run by test_sanitizers.py.
#include <limits>
#include <string_view>
#include <thread>
#include <vector>

namespace {

int shared = 0;

void race() {
  std::thread other([] { ++shared; });
  ++shared;
  other.join();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view way = argv[argc - 1];
  const std::vector<int> four(4);
  const volatile int most = std::numeric_limits<int>::max();
  if (way == "race") race();
  if (way == "beyond the end") return four.data()[argc + 2] == 1;
  if (way == "overflow") return most + argc == 0;
  return 0;
}
