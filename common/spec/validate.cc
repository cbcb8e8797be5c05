#include "common/spec/validate.h"

#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/error_details.h"
#include "common/spec/auto_fields.h"
#include "common/spec/checker.h"
#include "common/spec/labels.h"
#include "common/spec/scheduling.h"
#include "common/spec/sizes.h"
#include "common/spec/task_heads.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {
void CheckName(const std::string& name, Checker* check) {
  bool valid = !name.empty() && name.size() <= 63;
  for (const char c : name) {
    valid = valid && (absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.');
  }
  if (valid) return;
  check->Add("name", absl::StrCat("expected 1 to 63 letters, digits, '-', '_' and '.', got ",
                                  name.size(), " characters"));
}

// Sizes are planned one by one when the job is submitted.
constexpr int kMaxSizes = 32;

void CheckSize(const v1::JobSpec& spec, const char* field, int32_t ranks, Checker* check) {
  if (IsPossibleSize(spec, ranks)) return;
  const v1::ResourceSpec& resources = spec.resources();
  const int model = ModelRanks(resources);
  if (ranks % model != 0) {
    return check->Add(field, absl::StrCat("must be a multiple of ", ModelRanksName(resources), " (",
                                          model, "), got ", ranks));
  }
  if (ranks / model % Islands(spec) != 0) {
    return check->Add(
        field, absl::StrCat("must be a multiple of ",
                            model > 1 ? absl::StrCat(ModelRanksName(resources), " * ") : "",
                            "train.sync.islands (", model * Islands(spec), "), got ", ranks));
  }
  const int sharing = ranks / model * ContextRanks(resources) / Islands(spec);
  if (sharing % ExpertRanks(resources) != 0) {
    return check->Add(field, absl::StrCat("must be a multiple of resources.mesh.expert (",
                                          ExpertRanks(resources), "), got ", ranks));
  }
  const v1::TrainSpec& train = spec.train();
  const bool automatic = MicroIsAuto(spec);
  std::string message = absl::StrCat(
      "train.batch.global (", train.batch().global(), ") must be a multiple of ",
      automatic ? "" : absl::StrCat("train.batch.micro (", train.batch().micro(), ") * "),
      ranks / model,
      PipelineStages(resources) > 1 ? " pipelines"
      : ContextRanks(resources) > 1 ? " groups of ranks on the same samples"
      : model > 1                   ? " groups of tensor ranks"
                                    : " ranks");
  if (train.zero().group() > 0) {
    absl::StrAppend(&message, ", and these of train.zero.group (", train.zero().group(), ")");
  }
  check->Add(field, message);
}

void CheckSizes(const v1::JobSpec& spec, Checker* check) {
  const v1::ResourceSpec& resources = spec.resources();
  if (!resources.has_min_ranks() && !resources.has_max_ranks()) return;
  const int32_t ranks = resources.ranks();
  bool valid = ranks >= 1 && ranks <= kMaxRanks;
  valid = check->Int("resources.min_ranks", LeastRanks(resources), 1, kMaxRanks) && valid;
  valid = check->Int("resources.max_ranks", MostRanks(resources), 1, kMaxRanks) && valid;
  if (!valid || (!spec.has_script() && spec.train().batch().global() < 1)) return;
  if (LeastRanks(resources) > ranks) {
    return check->Add("resources.min_ranks", absl::StrCat("must be at most resources.ranks (",
                                                          ranks, "), got ", LeastRanks(resources)));
  }
  if (MostRanks(resources) < ranks) {
    return check->Add("resources.max_ranks", absl::StrCat("must be at least resources.ranks (",
                                                          ranks, "), got ", MostRanks(resources)));
  }
  if (TensorIsAuto(spec)) return;  // checked with each number of tensor ranks
  CheckSize(spec, "resources.min_ranks", LeastRanks(resources), check);
  CheckSize(spec, "resources.max_ranks", MostRanks(resources), check);
  const size_t sizes = PossibleSizes(spec).size();
  if (sizes > kMaxSizes) {
    check->Add("resources.max_ranks",
               absl::StrCat("from resources.min_ranks to here the job could run with ", sizes,
                            " numbers of ranks; at most ", kMaxSizes, ": narrow it"));
  }
}

void CheckResources(const v1::JobSpec& spec, Checker* check) {
  const v1::ResourceSpec& resources = spec.resources();
  check->Int("resources.ranks", resources.ranks(), 1, kMaxRanks);
  CheckMesh(spec, check);
  CheckSizes(spec, check);
  if (!v1::DeviceKind_IsValid(resources.device()) || resources.device() == 0) {
    check->Add("resources.device", "expected cpu or cuda");
  }
  check->Int("resources.threads_per_rank", resources.threads_per_rank(), 0, 1024);
  if (resources.has_memory()) {
    check->Int("resources.memory", resources.memory(), 1, int64_t{1} << 50);
  }
  if (resources.device_model().size() > 63) {
    check->Add("resources.device_model", "has at most 63 characters, such as h200");
  }
  if (!IsLabelValue(resources.pool())) {
    check->Add("resources.pool",
               "must be the value of workers' label `pool`, such as a100: at most 63 letters, "
               "digits, '-', '_' and '.'");
  }
  if (resources.profile().size() > 63) {
    check->Add("resources.profile", "the name of a device profile has at most 63 characters");
  }
}

void CheckCheckpoint(const v1::JobSpec& spec, Checker* check) {
  const v1::CheckpointSpec& checkpoint = spec.checkpoint();
  check->Int("checkpoint.every", checkpoint.every(), 0, 1'000'000'000);
  if (CheckKeptCheckpoints(checkpoint, check) && checkpoint.keep_every() > 0 &&
      checkpoint.every() == 0) {
    check->Add("checkpoint.keep_every",
               "no checkpoint is taken on the way: give checkpoint.every, or remove this field");
  }
  check->Int("checkpoint.redundancy", checkpoint.redundancy(), 0, 1);
  if (checkpoint.keep_best() && spec.train().validation().every() == 0) {
    check->Add("checkpoint.keep_best",
               "there is no validation on the way: give train.validation.every, or remove this "
               "field");
  }
  if (checkpoint.redundancy() > 0 &&
      spec.train().offload().optimizer() == v1::OFFLOAD_TARGET_NVME) {
    check->Add("checkpoint.redundancy",
               "keeps the state in host memory, and train.offload.optimizer: nvme has it on disk "
               "for want of that: give one of them");
  }
}

}  // namespace

bool CheckKeptCheckpoints(const v1::CheckpointSpec& checkpoint, Checker* check) {
  if (checkpoint.has_keep_last()) {
    check->Int("checkpoint.keep_last", checkpoint.keep_last(), 1, 10'000);
  }
  const bool valid = check->Int("checkpoint.keep_every", checkpoint.keep_every(), 0, 1'000'000'000);
  absl::string_view number = checkpoint.resume_from();
  uint64_t value;
  const bool named =
      absl::ConsumePrefix(&number, "checkpoints/") && absl::SimpleAtoi(number, &value);
  if (!named && !checkpoint.resume_from().empty()) {
    check->Add("checkpoint.resume_from",
               "expected a checkpoint's name such as checkpoints/12; `milepost checkpoint list` "
               "shows them");
  }
  return valid;
}

// False: so bad that nothing more need be said about it.
bool CheckPath(absl::string_view field, const std::string& path, Checker* check) {
  if (path.size() > 4096) {
    check->Add(field, absl::StrCat("a path of ", path.size(), " characters; at most 4096"));
    return false;
  }
  for (const char c : path) {
    if (static_cast<unsigned char>(c) >= ' ') continue;
    check->Add(field, "the path holds a control character");
    return false;
  }
  if (path[0] != '/') {
    check->Add(field,
               absl::StrCat("expected an absolute path, got '", path,
                            "' (a spec file's relative paths are made absolute when it is read)"));
  }
  return true;
}

std::vector<FieldViolation> CheckJobSpec(const v1::JobSpec& normalized) {
  Checker check;
  CheckName(normalized.name(), &check);
  if (normalized.has_script()) {
    CheckScript(normalized, &check);
  } else {
    CheckModel(normalized.model(), &check);
    CheckData(normalized, &check);
    check.Add(CheckTaskHeads(normalized));
    CheckTrain(normalized, &check);
    CheckCheckpoint(normalized, &check);
  }
  CheckResources(normalized, &check);
  check.Add(CheckScheduling(normalized.scheduling()));
  check.Int("restart.max_failures", normalized.restart().max_failures(), 0, 1000);
  check.Real("restart.backoff_seconds", normalized.restart().backoff_seconds(), 0, 60);
  const std::string& tensorboard = normalized.report().tensorboard();
  if (!tensorboard.empty()) CheckPath("report.tensorboard", tensorboard, &check);
  return check.Take();
}

absl::Status ValidateJobSpec(const v1::JobSpec& normalized) {
  constexpr size_t kMostBytes = 1200;  // errors travel in headers, which gRPC bounds to 8 KiB
  const std::vector<FieldViolation> violations = CheckJobSpec(normalized);
  if (violations.empty()) return absl::OkStatus();
  v1::BadRequest bad_request;
  std::vector<std::string> lines;
  size_t bytes = 0;
  for (const FieldViolation& violation : violations) {
    std::string line = absl::StrCat(violation.field, ": ", violation.message);
    bytes += line.size();
    if (!lines.empty() && bytes > kMostBytes) {
      lines.push_back(absl::StrCat("and ", violations.size() - lines.size(), " more"));
      break;
    }
    lines.push_back(std::move(line));
    auto* detail = bad_request.add_field_violations();
    detail->set_field(violation.field);
    detail->set_description(violation.message);
  }
  absl::Status status = absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
  SetDetail(bad_request, &status);
  return status;
}

}  // namespace milepost
