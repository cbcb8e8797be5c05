// The fastest settings of a job that fit, over all that may be chosen at once: tensor ranks, stages
// of a pipeline and their schedule, context and expert ranks, ZeRO's stage and group,
// recomputation, micro-batch and offloading. Before anything runs.
//
//   MeshSearch search(spec, WholeSpace(spec, place), place);
//   MP_ASSIGN_OR_RETURN(const std::vector<RankedSetting> best, search.Best(5));
//   MP_ASSIGN_OR_RETURN(const std::vector<Sensitivity> rests_on, search.RestsOn(best.front()));
//
// Settings are passed over by bounds (mesh_bounds.h): what a rank keeps through the whole run, the
// computation of the micro-steps, the bytes that the communication stream sends; of pipelines what
// short drafts of a stage say of its layers (layer_passes.h). The rest are ranked by drafts of
// fewer layers or micro-batches (scaled_draft.h), and the best of them measured as PlanTraining
// packs them.
// Deterministic; pure but for what it remembers. For one thread.
#ifndef MILEPOST_ENGINE_PLAN_FIT_MESH_SEARCH_H_
#define MILEPOST_ENGINE_PLAN_FIT_MESH_SEARCH_H_

#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/plan/estimates/estimate.h"
#include "engine/plan/fit/layer_passes.h"
#include "engine/plan/fit/mesh_bounds.h"
#include "engine/plan/fit/scaled_draft.h"
#include "engine/plan/fit/settings.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::plan {

struct PipelineChoice {
  int stages = 1;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  int chunks = 1;
};

// What may be chosen; a further axis is a field here, in Setting, in Candidates() and in the keys
// of mesh_search.cc.
struct MeshSpace {
  std::vector<int> tensors;
  std::vector<PipelineChoice> pipelines = {{}};
  bool contexts = false;        // without stages all that tensor ranks leave; else the spec's
  bool stage_contexts = false;  // the same with stages
  bool experts = false;         // every number that the spec may have; else the spec's
  std::vector<int> stages;      // the preferred ones first
  bool groups = false;          // those within a host and of several hosts; else the spec's
  std::vector<Recompute> recomputes;
  std::vector<bool> offloads;
  bool micros = false;  // every divisor of a rank's sequences; else the spec's
  // Of micro-batches: how many side by side what is found may have (train.batch.side_by_side). They
  // are looked at last, for what would be listed without.
  std::vector<int> side_by_side = {1};
};

// What the spec leaves open (`auto`), or everything.
MeshSpace OpenSpace(const v1::JobSpec& spec);
MeshSpace WholeSpace(const v1::JobSpec& spec, const RankPlace& place);

// Every setting of the space that is valid for the spec, with micro-batches in turn. Pure.
std::vector<Setting> Candidates(const v1::JobSpec& spec, const MeshSpace& space,
                                const RankPlace& place);

struct RankedSetting {
  Setting setting;  // with bytes and seconds, as PlanTraining packs it
  StepEstimate estimate;
};

// That one rate were so many times what the profile says.
struct Sensitivity {
  std::string rate;  // "network_bandwidth", as the profile's JSON has it
  double factor = 1;
  // Absent: the choice stays.
  std::optional<Setting> instead;
  double ratio = 1;  // of the choice's seconds over those of `instead`
};

class MeshSearch {
 public:
  // `spec`, valid and normalised, and `place`, of known memory, must outlive this.
  MeshSearch(const v1::JobSpec& spec, MeshSpace space, const RankPlace& place);

  using Wanted = std::function<bool(const Setting&)>;

  // At most `count` that fit, the best first: the fastest, or among those within 1% of it the first
  // in order of preference (fewer stages of a pipeline, fewer tensor ranks, fewer context ranks,
  // fewer expert ranks, 1F1B, no offloading, less recomputation, the space's order of ZeRO stages,
  // no group, fewer bytes); then by seconds.
  // Empty: none fits. Errors of planning.
  absl::StatusOr<std::vector<RankedSetting>> Best(size_t count, const Wanted& wanted = nullptr);

  // By drafts alone: the seconds of the fastest; nullopt: none fits.
  absl::StatusOr<std::optional<double>> LeastSeconds(const Wanted& wanted);

  // Each rate that `chosen` depends on, at half and at twice of what it is.
  absl::StatusOr<std::vector<Sensitivity>> RestsOn(const RankedSetting& chosen);

  // The one that needs the fewest bytes, by drafts: for refusals. Nullopt: there are no candidates.
  absl::StatusOr<std::optional<Setting>> Smallest();

  size_t candidates() const { return all_; }
  size_t drafts() const { return drafts_.size(); }  // how many have been made so far

 private:
  // Of what computes a micro-batch alike, but for the part of it that a context rank has: tensor
  // ranks, recomputation, micro-batch, expert ranks.
  using ComputeKey = std::tuple<int, Recompute, int64_t, int>;
  // Stages of a pipeline, their schedule and chunks.
  using PipelineKey = std::tuple<int, PipelineSchedule, int>;
  // And context ranks, ZeRO's stage, group, offload, micro-batches side by side.
  using Key = std::tuple<ComputeKey, PipelineKey, int, int, int, bool, int>;

  // Of what computes a micro-batch of a pipeline's layer alike: and context ranks, the schedule.
  using LayerKey = std::tuple<ComputeKey, int, PipelineSchedule>;
  // Of what needs more memory with larger micro-batches and smaller groups: and stages, ZeRO's
  // stage.
  using GrowingKey = std::tuple<int, Recompute, PipelineKey, int, int, int>;

  // Of a pipeline whose stages are alike.
  struct Passes {
    double waiting = 1;              // how many times as long as it computes it takes
    int in_flight = 1;               // forwards of which the first stage keeps something
    std::vector<StageOrder> orders;  // OrdersOf(); none: kOneForwardOneBackward
  };
  using PassesKey = std::pair<PipelineKey, int64_t>;  // and micro-batches

  struct Seen {
    Setting setting;
    double seconds = 0;
  };

  // What is known of one profile.
  struct Known {
    const DeviceProfile& profile;
    std::map<ComputeKey, AlikeSeconds> alike;
    std::map<LayerKey, PassTimes> layers;
    std::map<std::pair<LayerKey, PassesKey>, double> passes;  // what they take at least
  };

  static ComputeKey ComputeKeyOf(const Setting& s) {
    return {s.tensor, s.recompute, s.micro, s.expert};
  }
  static PipelineKey PipelineKeyOf(const Setting& s) { return {s.pipeline, s.schedule, s.chunks}; }
  static PassesKey PassesKeyOf(const Setting& s) { return {PipelineKeyOf(s), s.accumulation}; }
  static LayerKey LayerKeyOf(const Setting& s) { return {ComputeKeyOf(s), s.context, s.schedule}; }
  static GrowingKey GrowingKeyOf(const Setting& s) {
    return {s.tensor, s.recompute, PipelineKeyOf(s), s.context, s.expert, s.stage};
  }
  static Key KeyOf(const Setting& s) {
    return {ComputeKeyOf(s), PipelineKeyOf(s), s.context,     s.stage,
            s.group,         s.offload,        s.side_by_side};
  }

  // nullptr: it cannot be planned.
  absl::StatusOr<const ScaledDraft*> DraftOf(const Setting& setting);
  // A draft without a pipeline and context ranks whose micro-batches compute alike.
  absl::StatusOr<const ScaledDraft*> AlikeOf(const Setting& setting);
  // Of a pipeline.
  absl::StatusOr<const LayerPasses*> LayerOf(const Setting& setting);
  PlanOptions OptionsWith(const Setting& setting, const ScaledDraft& alike) const;
  const Passes& PassesOf(const Setting& setting);
  // nullopt: it cannot be planned.
  absl::StatusOr<std::optional<double>> LeastBytes(const Setting& setting);
  // Those of the candidates whose bounds say that they may fit. Once.
  absl::Status Sieve();
  absl::StatusOr<double> LeastSecondsOf(const Setting& setting, Known* known);
  // Of a pipeline: closer, from short drafts. 0: these tell nothing; infinity: a coordinator would
  // not plan it.
  absl::StatusOr<double> LeastSecondsOfStages(const Setting& setting, Known* known);
  absl::StatusOr<double> LeastSecondsOfPasses(const Setting& setting, const PlanOptions& options,
                                              Known* known);
  // DraftOf() where a pipeline may fit: nullptr if one that needs no more does not.
  absl::StatusOr<const ScaledDraft*> DraftThatMayFit(const Setting& setting);
  // By a draft, and no sooner than a bound says. nullopt: it does not fit.
  absl::StatusOr<std::optional<Seen>> SeenOf(const Setting& setting, double least,
                                             const DeviceProfile& profile);
  absl::StatusOr<const RankedSetting*> ExactOf(const Setting& setting);
  // Of one with micro-batches in turn: as the space says, the fastest that fits. nullopt: none.
  absl::StatusOr<std::optional<RankedSetting>> SideBySideOf(const RankedSetting& in_turn);
  // In order of preference.
  using Preference =
      std::tuple<int, int, int, int, PipelineSchedule, bool, Recompute, size_t, bool, int64_t>;
  Preference RankOf(const Setting& setting) const;
  // Those that may need the fewest bytes, by how many they need at least.
  absl::StatusOr<std::vector<std::pair<double, Setting>>> SmallestBounds();
  // By drafts: those that fit, at least `count` and all within 1% of the fastest, if there are. Not
  // all of those that take longer than `most` seconds.
  absl::StatusOr<std::vector<Seen>> Rank(const DeviceProfile& profile, size_t count,
                                         const Wanted& wanted,
                                         double most = std::numeric_limits<double>::infinity());

  const v1::JobSpec& spec_;
  const MeshSpace space_;
  const RankPlace& place_;
  std::vector<Setting> candidates_;  // once sieved, those that may fit
  const size_t all_;
  bool sieved_ = false;
  std::map<Key, std::optional<ScaledDraft>> drafts_;  // nullopt: it cannot be planned
  std::map<ComputeKey, Key> alike_;
  std::map<Key, RankedSetting> exact_;
  std::map<PassesKey, Passes> passes_;
  std::map<LayerKey, LayerPasses> layers_;
  std::map<GrowingKey, int64_t> too_large_;  // the least micro-batch that does not fit in any group
  absl::Status refusal_;                     // of the first that cannot be planned
};

// How a setting cuts up so many ranks: "8 data x 4 tensor", "2 data x 2 context x 4 stages x 2
// tensor", "8 data (4 expert) x 1 tensor".
std::string MeshText(int ranks, const Setting& setting);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_FIT_MESH_SEARCH_H_
