#include "engine/plan/estimates/links.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/ops/context_parallel/context_parallel.h"
#include "engine/ops/expert_parallel/expert_parallel.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

// Of groups of `size` neighbours among `all` ranks, `host` to a host.
Participants Neighbours(int size, int all, int host) {
  if (all <= host) return {size, size};
  if (size < all) return {size, std::gcd(size, host)};
  return {size, size % host == 0 ? host : size % host};  // one group: the last host has the rest
}

// Of each `apart`-th rank of `size * apart`.
Participants Apart(int size, int apart, int all, int host) {
  if (all <= host) return {size, size};
  return {size, std::clamp(host / apart, 1, size)};
}

// Bytes per second that a rank sends.
double Bandwidth(const Participants& who, const DeviceProfile& profile) {
  if (who.ranks <= who.on_a_host) return profile.host_bandwidth;
  return std::min(profile.host_bandwidth, profile.network_bandwidth * who.on_a_host);
}

bool IsRing(OpKind kind, const PlanOptions& options) {
  if (options.device != DeviceKind::kCuda || options.Shards() == 1) return false;
  return kind == OpKind::kReduceGradients || kind == OpKind::kGatherParameters ||
         kind == OpKind::kGatherUpdates || kind == OpKind::kScatterUpdates;
}

double Doublings(int ranks) { return std::ceil(std::log2(static_cast<double>(ranks))); }

// How many times a message waits for its way. NCCL gathers and scatters in rings: a first byte goes
// through every rank. Its own model (src/graph/tuning.cc) has 3.4 us for each rank of a host and 14
// for each host; 8 us for each doubling within a host, and for each host, come close to both.
// All-reduces of few bytes take a tree.
double Ways(OpKind kind, const Participants& who, const PlanOptions& options) {
  if (!IsRing(kind, options) || who.ranks <= who.on_a_host) return Doublings(who.ranks);
  const double hosts = std::ceil(static_cast<double>(who.ranks) / who.on_a_host);
  return hosts * Doublings(who.on_a_host) + hosts - 1;
}

// An all-to-all: as much to each of the others, at once. What goes to other hosts takes this rank's
// own part of the network.
double ExchangeSeconds(double wire_bytes, const Participants& who, const DeviceProfile& profile) {
  const double far = static_cast<double>(who.ranks - who.on_a_host) / (who.ranks - 1);
  const double near_seconds = wire_bytes / std::max(profile.host_bandwidth, 1.0);
  const double far_seconds = wire_bytes * far / std::max(profile.network_bandwidth, 1.0);
  return std::max(near_seconds, far > 0 ? far_seconds : 0.0) + profile.collective_seconds;
}

// Whether a host has whole pipelines.
bool HasAllStages(const PlanOptions& options, int ranks_per_host) {
  return options.ModelRanks() * options.context <= ranks_per_host;
}

}  // namespace

// Each host gives whole groups of tensor ranks, as far as it can, and of a stage's context ranks.
int DataRanksOnAHost(const PlanOptions& options, int ranks_per_host) {
  return HasAllStages(options, ranks_per_host)
             ? ranks_per_host / options.ModelRanks()
             : std::clamp(ranks_per_host / options.tensor, 1, options.context);
}

Participants ParticipantsOf(OpKind kind, const PlanOptions& options, int ranks_per_host,
                            bool of_experts) {
  const int all = options.Ranks();
  const int on_host = ranks_per_host > 0 ? ranks_per_host : options.AllRanks();
  const bool all_stages = HasAllStages(options, on_host);
  const int data_on_host = DataRanksOnAHost(options, on_host);
  const int shards = options.Shards();
  switch (kind) {
    case OpKind::kReduceScalars:
      return Neighbours(all, all, on_host);
    case OpKind::kTensorReduce:
    case OpKind::kTensorScatter:
    case OpKind::kReduceParts:
    case OpKind::kTensorGather:
      if (options.tensor <= on_host) return {options.tensor, options.tensor};
      return Neighbours(options.tensor, all, on_host);
    case OpKind::kTokensToHeads:
    case OpKind::kHeadsToTokens:
      // Those of a stage are placed beside each other.
      if (options.context * options.tensor <= on_host) return {options.context, options.context};
      return Apart(options.context, options.tensor, all, on_host);
    case OpKind::kExpertSegments:
    case OpKind::kRowsToExperts:
    case OpKind::kRowsFromExperts:
      return Neighbours(options.expert, options.world, data_on_host);
    case OpKind::kStageSend:  // to a neighbour
    case OpKind::kReduceShared:
      return {2, all_stages ? 2 : 1};
    case OpKind::kReduceReplicas:
      return Apart(options.Replicas(), shards, options.world, data_on_host);
    case OpKind::kAverageIslands:
      return Apart(options.islands, all, options.AllRanks(), on_host);
    case OpKind::kReduceStatistics:
    case OpKind::kAverageStatistics:
    case OpKind::kGatherAmaxes:
      return Neighbours(options.world, options.world, data_on_host);
    default:
      if (of_experts) {
        return Apart(options.world / options.expert, options.expert, options.world, data_on_host);
      }
      return Neighbours(shards > 1 ? shards : options.world, options.world, data_on_host);
  }
}

double CollectiveSeconds(OpKind kind, double wire_bytes, const PlanOptions& options,
                         const DeviceProfile& profile, bool of_experts) {
  if (wire_bytes <= 0) return 0;
  const Participants who = ParticipantsOf(kind, options, profile.ranks_per_host, of_experts);
  if (ops::IsHeadsExchange(kind) || ops::IsExpertExchange(kind))
    return ExchangeSeconds(wire_bytes, who, profile);
  return wire_bytes / std::max(Bandwidth(who, profile), 1.0) +
         profile.collective_seconds * Ways(kind, who, options);
}

double OverlapOf(OpKind kind, const PlanOptions& options, const DeviceProfile& profile,
                 bool of_experts) {
  if (options.device == DeviceKind::kCuda || profile.host_bandwidth <= 0) return profile.overlap;
  const Participants who = ParticipantsOf(kind, options, profile.ranks_per_host, of_experts);
  const double busy = Bandwidth(who, profile) / profile.host_bandwidth;
  return 1 - (1 - profile.overlap) * busy;
}

}  // namespace milepost::plan
