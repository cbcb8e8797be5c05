// What a search for the fastest settings found (fit/mesh_search.h), in words: `milepost plan
// --search`.
//
//   std::cout << plan::SearchTable(found);
#ifndef MILEPOST_ENGINE_PLAN_PRINTING_SEARCH_PRINTER_H_
#define MILEPOST_ENGINE_PLAN_PRINTING_SEARCH_PRINTER_H_

#include <cstddef>
#include <string>
#include <vector>

#include "engine/plan/fit/mesh_search.h"
#include "engine/plan/fit/settings.h"

namespace milepost::plan {

struct SearchResult {
  int ranks = 1;
  RankPlace place;
  std::vector<RankedSetting> best;    // the choice first; not empty
  std::vector<Sensitivity> rests_on;  // of the choice
  size_t candidates = 0;
  size_t drafts = 0;
  std::string unit = "tokens";
  // Of the spec whose fields the choice is to replace.
  bool had_pipeline = false;
  bool had_context = false;
  bool had_expert = false;
  bool had_side_by_side = false;
};

// Several lines, each ended.
std::string SearchTable(const SearchResult& result);

// One JSON object: {"ranks", "ranks_per_host", "device", "source", "candidates", "drafts",
// "best": [SETTING and "bytes" of a rank, "host_bytes" of its host's memory, "seconds",
// "exposed_seconds", "bubble_seconds", "communication_seconds", "bound", "tokens_per_second",
// "tokens_per_second_per_rank", "mfu"], "rates": {"matmul": FLOP/s of products in the job's type,
// "memory_bandwidth", ...}, "rests_on": [{"rate", "factor", "instead": SETTING?, "ratio": of the
// choice's seconds over those of `instead`}]}. SETTING: {"data", "context"?, "expert"?,
// "pipeline"?, "schedule"?, "chunks"?, "tensor", "stage", "group": 0 is all data and context ranks,
// "recompute", "micro", "accumulation", "side_by_side"?, "offload_optimizer": "none" or "host"}.
std::string SearchJson(const SearchResult& result, int indent = 2);

// The choice as overrides of a spec: {"resources.mesh.tensor=4", ...}.
std::vector<std::string> OverridesFor(const SearchResult& result);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PRINTING_SEARCH_PRINTER_H_
