// Kernel times of a running CUDA program, by CUPTI. Build on the machine, headers and library are in the CUDA toolkit:
//   g++ -O2 -shared -fPIC -std=c++17 -I"$CUDA/include" scripts/kernel-times.cpp -o kernel-times.so -L"$CUDA/lib64" -lcupti
// Start the program with CUDA_INJECTION64_PATH=kernel-times.so, KERNEL_TIMES_OUT (a file that gets the table) and
// KERNEL_TIMES_FLAG (a file that is there while kernels count); touch and remove that file.
// CUDA before 13 has an older record: -DKERNEL_RECORD=CUpti_ActivityKernel9.
#include <cupti.h>
#include <cxxabi.h>
#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#ifndef KERNEL_RECORD
#define KERNEL_RECORD CUpti_ActivityKernel10
#endif

struct Span { uint64_t start, end; const char *name; };
static std::mutex mutex;
static std::vector<Span> spans;

static void CUPTIAPI give(uint8_t **buffer, size_t *size, size_t *maxRecords) {
  *size = 8 << 20;
  *buffer = static_cast<uint8_t *>(aligned_alloc(8, *size));
  *maxRecords = 0;
}

static void CUPTIAPI take(CUcontext, uint32_t, uint8_t *buffer, size_t, size_t valid) {
  CUpti_Activity *record = nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    auto *k = reinterpret_cast<KERNEL_RECORD *>(record);
    spans.push_back({k->start, k->end, k->name});
  }
  free(buffer);
}

static std::string shortName(const char *mangled) {
  int status = 0;
  char *text = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = status == 0 ? text : mangled;
  free(text);
  if (name.rfind("void ", 0) == 0) name = name.substr(5);
  size_t paren = name.find('(', 1);
  if (name.find("cub::") != std::string::npos) paren = std::min(name.find('<'), paren);
  return name.substr(0, std::min<size_t>(paren, 110));
}

static void report(uint64_t from, uint64_t to) {
  std::vector<Span> in;
  {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto &s : spans) if (s.start >= from && s.end <= to) in.push_back(s);
    spans.clear();
  }
  std::sort(in.begin(), in.end(), [](const Span &a, const Span &b) { return a.start < b.start; });
  std::map<std::string, std::pair<uint64_t, uint64_t>> byName;
  std::map<const char *, std::string> names;
  std::vector<std::pair<uint64_t, int>> edges;
  uint64_t sum = 0;
  for (auto &s : in) {
    auto &name = names[s.name];
    if (name.empty()) name = shortName(s.name);
    auto &[n, ns] = byName[name];
    n++;
    ns += s.end - s.start;
    sum += s.end - s.start;
    edges.push_back({s.start, 1});
    edges.push_back({s.end, -1});
  }
  std::sort(edges.begin(), edges.end());
  uint64_t last = 0, at[4] = {0, 0, 0, 0};
  int depth = 0;
  for (auto &[t, d] : edges) {
    if (last != 0) at[std::min(depth, 3)] += t - last;
    last = t;
    depth += d;
  }
  FILE *f = fopen(getenv("KERNEL_TIMES_OUT"), "a");
  double all = at[0] + at[1] + at[2] + at[3];
  fprintf(f, "window %.1f ms, kernels %zu, sum %.1f ms; none running %.3f, one %.3f, two %.3f, more %.3f\n", all / 1e6, in.size(), sum / 1e6, at[0] / all, at[1] / all, at[2] / all, at[3] / all);
  std::vector<std::pair<std::string, std::pair<uint64_t, uint64_t>>> rows(byName.begin(), byName.end());
  std::sort(rows.begin(), rows.end(), [](auto &a, auto &b) { return a.second.second > b.second.second; });
  for (auto &[name, v] : rows) fprintf(f, "%8lu %10.2f ms %8.2f us %5.1f%%  %s\n", v.first, v.second / 1e6, v.second / 1e3 / v.first, 100.0 * v.second / sum, name.c_str());
  fclose(f);
}

static void watch() {
  const char *flag = getenv("KERNEL_TIMES_FLAG");
  uint64_t from = 0, now = 0;
  bool isOpen = false;
  for (;; usleep(20000)) {
    bool isThere = access(flag, F_OK) == 0;
    if (isThere == isOpen) continue;
    cuptiGetTimestamp(&now);
    isOpen = isThere;
    if (isThere) { from = now; continue; }
    cuptiActivityFlushAll(1);
    report(from, now);
  }
}

extern "C" int InitializeInjection(void) {
  if (getenv("KERNEL_TIMES_FLAG") == nullptr || getenv("KERNEL_TIMES_OUT") == nullptr) {
    fprintf(stderr, "kernel-times: set KERNEL_TIMES_FLAG and KERNEL_TIMES_OUT to file names; kernels are not timed\n");
    return 1;
  }
  cuptiActivityRegisterCallbacks(give, take);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  std::thread(watch).detach();
  return 1;
}
