#include "api/headroom.h"

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>
#include <tuple>
#include <utility>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "operators/op_plan.h"
#include "origin/host_queries.h"

namespace torchnan {
namespace {

using Entry = HeadroomTable::Entry;

// The largest numbers of one row.
struct Row {
  Entry measured;
  Entry proved;

  void add(const Entry& entry) {
    if (entry.measured > measured.measured) measured = entry;
    if (entry.proved > proved.proved) proved = entry;
  }
};

double largest_number(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Half:
      return std::numeric_limits<c10::Half>::max();
    case c10::ScalarType::BFloat16:
      return std::numeric_limits<c10::BFloat16>::max();
    default:
      return std::numeric_limits<float>::max();
  }
}

Headroom headroom_of(const std::optional<std::string>& module, c10::ScalarType dtype, const Row& row) {
  Headroom told;
  told.module = module;
  told.dtype = c10::getDtypeNames(dtype).first;
  told.limit = largest_number(dtype);
  told.exact = row.measured.maker.op != nullptr;
  told.op = (told.exact ? row.measured : row.proved).maker.op->name;
  told.absmax = told.exact ? row.measured.measured : row.proved.proved;
  told.bound = std::max(row.measured.measured, row.proved.proved);
  return told;
}

std::vector<ResolvedSite> places_of(const std::vector<Entry>& entries, const DetectionSession& session) {
  std::vector<Site> sites(entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    sites[i].live = entries[i].maker.site;
    sites[i].grad_mode = entries[i].maker.grad_mode;
  }
  return query_sites(sites, session);
}

}  // namespace

std::vector<Headroom> take_headroom(const DetectionSession& session) {
  if (!session.options().headroom) {
    throw std::logic_error(
        "headroom() knows nothing, for the option was off: make the detection with headroom=True (C++: "
        "Options::headroom)");
  }
  if (session.headroom() == nullptr) return {};  // switched off
  const std::vector<Entry> entries = session.headroom()->take();
  const std::vector<ResolvedSite> places = places_of(entries, session);
  std::map<std::tuple<std::optional<std::string>, std::string, c10::ScalarType>, Row> rows;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (places[i].phase != Phase::kForward) continue;  // an optimizer's arithmetic
    const HeadroomTable::Maker& maker = entries[i].maker;
    rows[{places[i].module, places[i].module ? "" : maker.op->name, maker.dtype}].add(entries[i]);
  }
  std::vector<Headroom> told;
  for (const auto& [key, row] : rows) told.push_back(headroom_of(std::get<0>(key), std::get<2>(key), row));
  std::stable_sort(told.begin(), told.end(), [](const Headroom& a, const Headroom& b) {
    return std::pair(a.exact, a.used()) > std::pair(b.exact, b.used());
  });
  return told;
}

}  // namespace torchnan
