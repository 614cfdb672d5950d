#include "origin/headroom.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "check/bounds/dtype_range.h"
#include "check/operators/op_plan.h"
#include "origin/runtime_queries.h"

namespace torchnan {
namespace {

// The largest numbers of one row.
struct Row {
  HeadroomTable::Entry measured;
  HeadroomTable::Entry proved;

  void add(const HeadroomTable::Entry& entry) {
    if (entry.measured > measured.measured) measured = entry;
    if (entry.proved > proved.proved) proved = entry;
  }
};

Headroom headroom_of(const std::optional<std::string>& module, c10::ScalarType dtype, const Row& row) {
  Headroom headroom;
  headroom.module = module;
  headroom.dtype = c10::getDtypeNames(dtype).first;
  headroom.limit = largest_number(dtype);
  headroom.exact = row.measured.producer.op != nullptr;
  headroom.op = (headroom.exact ? row.measured : row.proved).producer.op->name;
  headroom.absmax = headroom.exact ? row.measured.measured : row.proved.proved;
  headroom.bound = std::max(row.measured.measured, row.proved.proved);
  return headroom;
}

std::vector<ResolvedSite> resolve_sites(const std::vector<HeadroomTable::Entry>& entries,
                                        const DetectionSession& session) {
  std::vector<Site> sites(entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    sites[i].live = entries[i].producer.site;
    sites[i].grad_mode = entries[i].producer.grad_mode;
  }
  return query_sites(sites, session);
}

}  // namespace

std::vector<Headroom> drain_headroom(const DetectionSession& session) {
  if (!session.options().headroom) {
    throw std::logic_error(
        "headroom() has nothing to report, because the option was off: use detect(headroom=True), in C++ "
        "Options::headroom");
  }
  if (session.headroom() == nullptr) return {};  // switched off
  const std::vector<HeadroomTable::Entry> entries = session.headroom()->drain();
  const std::vector<ResolvedSite> sites = resolve_sites(entries, session);
  std::map<std::tuple<std::optional<std::string>, std::string, c10::ScalarType>, Row> rows;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (sites[i].phase != Phase::kForward) continue;  // an optimizer's arithmetic
    const HeadroomTable::Producer& producer = entries[i].producer;
    rows[{sites[i].module, sites[i].module ? "" : producer.op->name, producer.dtype}].add(entries[i]);
  }
  std::vector<Headroom> headroom;
  for (const auto& [key, row] : rows) headroom.push_back(headroom_of(std::get<0>(key), std::get<2>(key), row));
  std::stable_sort(headroom.begin(), headroom.end(), [](const Headroom& a, const Headroom& b) {
    return std::pair(a.exact, a.used()) > std::pair(b.exact, b.used());
  });
  return headroom;
}

}  // namespace torchnan
