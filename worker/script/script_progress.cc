#include "worker/script/script_progress.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "common/proto_time.h"

namespace milepost::worker {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostNameBytes = 128;
constexpr double kMostSteps = 1e15;   // exact in a double
constexpr double kMostSeconds = 1e9;  // some thirty years
constexpr absl::string_view kPercent = "progressPercentage";

const Json* Member(const Json& object, absl::string_view name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

// A number, or a text of one: KubeflowCallback sends texts.
std::optional<double> NumberIn(const Json* value) {
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->get<double>();
  double number = 0;
  if (!value->is_string() || !absl::SimpleAtod(value->get_ref<const std::string&>(), &number)) {
    return std::nullopt;
  }
  return number;
}

bool IsCount(double value) { return value >= 0 && value <= kMostSteps; }

}  // namespace

ScriptProgress::ScriptProgress() {
  progress_.set_train_loss(std::numeric_limits<double>::quiet_NaN());
  progress_.set_validation_loss(std::numeric_limits<double>::quiet_NaN());
}

void ScriptProgress::TakeMetric(absl::string_view name, double value) {
  if (name == "current_step") {
    if (IsCount(value)) progress_.set_step(static_cast<int64_t>(value));
    counts_steps_ = true;
  } else if (name == "total_steps") {
    if (IsCount(value)) progress_.set_total_steps(static_cast<int64_t>(value));
    counts_steps_ = true;
  } else if (name == "loss") {
    progress_.set_train_loss(value);
  } else if (name == "eval_loss") {
    progress_.set_validation_loss(value);
    progress_.set_validation_step(progress_.step());
  } else if (name == "learning_rate") {
    progress_.set_lr(value);
  } else if (name == "grad_norm") {
    progress_.set_grad_norm(value);
  } else if (!name.empty() && name.size() <= kMostNameBytes) {
    auto& metrics = *progress_.mutable_metrics();
    if (metrics.size() < kMostMetrics || metrics.contains(std::string(name))) {
      metrics[std::string(name)] = value;
    }
  }
}

absl::Status ScriptProgress::Take(absl::string_view body, absl::Time now) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  const Json* status = json.is_object() ? Member(json, "trainerStatus") : nullptr;
  if (status == nullptr || !status->is_object()) {
    return absl::InvalidArgumentError(
        R"(expected a JSON object like {"trainerStatus": {"metrics": [...]}})");
  }
  const Json* metrics = Member(*status, "metrics");
  if (metrics != nullptr && !metrics->is_array()) {
    return absl::InvalidArgumentError("trainerStatus.metrics: expected a list");
  }
  // The step first: a validation belongs to it.
  const Json none = Json::array();
  bool says_step = false;
  for (const bool steps : {true, false}) {
    for (const Json& metric : metrics == nullptr ? none : *metrics) {
      const Json* name = metric.is_object() ? Member(metric, "name") : nullptr;
      if (name == nullptr || !name->is_string()) continue;
      const auto& text = name->get_ref<const std::string&>();
      const auto value = NumberIn(Member(metric, "value"));
      if (value && (text == "current_step" || text == "total_steps") == steps) {
        TakeMetric(text, *value);
        says_step = says_step || text == "current_step";
      }
    }
  }
  const auto percent = NumberIn(Member(*status, kPercent));
  if (percent && !counts_steps_) {
    progress_.set_total_steps(100);
    progress_.set_step(static_cast<int64_t>(std::clamp(*percent, 0.0, 100.0)));
  } else if (percent && *percent >= 100 && !says_step && progress_.total_steps() > 0) {
    progress_.set_step(progress_.total_steps());  // KubeflowCallback's last status has no step
  }
  const auto left = NumberIn(Member(*status, "estimatedRemainingSeconds"));
  if (left && *left >= 0 && *left <= kMostSeconds) progress_.set_remaining_seconds(*left);
  *progress_.mutable_time() = ToProto(now);
  return absl::OkStatus();
}

}  // namespace milepost::worker
