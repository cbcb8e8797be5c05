#include "engine/plan/printing/search_printer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/plan/human_units.h"
#include "nlohmann/json.hpp"

namespace milepost::plan {
namespace {

using Json = nlohmann::ordered_json;

std::string GroupText(int group) { return group == 0 ? "all" : absl::StrCat(group); }

const char* OffloadText(bool offload) { return offload ? "host" : "none"; }

std::string ScheduleText(const Setting& setting) {
  if (setting.pipeline == 1) return "-";
  return absl::StrCat(Name(setting.schedule),
                      setting.chunks > 1 ? absl::StrCat(" x ", setting.chunks) : "");
}

// "1.23 M": three digits.
std::string Figure(double value) {
  constexpr std::array<const char*, 6> kUnits = {"", " k", " M", " G", " T", " P"};
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return absl::StrFormat("%.3g%s", value, kUnits[unit]);
}

// "8", or "8 (2)": of them so many side by side.
std::string AccumulationText(const Setting& setting) {
  return absl::StrCat(setting.accumulation, setting.side_by_side > 1
                                                ? absl::StrCat(" (", setting.side_by_side, ")")
                                                : "");
}

// What differs from the choice alone.
std::string SettingText(int ranks, const Setting& setting) {
  const std::string schedule =
      setting.pipeline > 1 ? absl::StrCat(" (", ScheduleText(setting), ")") : "";
  return absl::StrCat(MeshText(ranks, setting), schedule, ", ZeRO stage ", setting.stage,
                      ", group ", GroupText(setting.group), ", recompute ", Name(setting.recompute),
                      ", micro-batch ", setting.micro, ", accumulation ", setting.accumulation,
                      setting.side_by_side > 1
                          ? absl::StrCat(", ", setting.side_by_side, " micro-batches side by side")
                          : "",
                      setting.offload ? ", optimizer on the host" : "");
}

Json SettingJson(int ranks, const Setting& setting) {
  Json json = {{"data", ranks / setting.ModelRanks()}};
  if (setting.context > 1) json["context"] = setting.context;
  if (setting.expert > 1) json["expert"] = setting.expert;
  if (setting.pipeline > 1) {
    json["pipeline"] = setting.pipeline;
    json["schedule"] = Name(setting.schedule);
    if (setting.chunks > 1) json["chunks"] = setting.chunks;
  }
  json["tensor"] = setting.tensor;
  json["stage"] = setting.stage;
  json["group"] = setting.group;
  json["recompute"] = Name(setting.recompute);
  json["micro"] = setting.micro;
  json["accumulation"] = setting.accumulation;
  if (setting.side_by_side > 1) json["side_by_side"] = setting.side_by_side;
  json["offload_optimizer"] = OffloadText(setting.offload);
  return json;
}

struct RateText {
  const char* name;  // the profile's
  const char* what;
  double value;
  const char* unit;
};

std::vector<RateText> RatesOf(const RankPlace& place) {
  const DeviceProfile& p = place.profile;
  const bool hosts = p.ranks_per_host > 0;
  std::vector<RateText> rates = {
      {"matmul", "products in bf16", RateOf(p, DType::kBf16).achieved, "FLOP/s"},
      {"memory_bandwidth", "a device's memory", p.memory_bandwidth, "B/s"},
      {"host_bandwidth", "from a rank to its host's ranks", p.host_bandwidth, "B/s"}};
  if (hosts) {
    rates.push_back(
        {"network_bandwidth", "from a rank to other hosts", p.network_bandwidth, "B/s"});
  }
  if (p.host_device_bandwidth > 0) {
    rates.push_back(
        {"host_device_bandwidth", "between a device and its host", p.host_device_bandwidth, "B/s"});
    rates.push_back(
        {"host_memory_bandwidth", "a rank's share of its host's", p.host_memory_bandwidth, "B/s"});
  }
  rates.push_back({"op_seconds", "before an op computes", p.op_seconds * 1e6, "us"});
  rates.push_back({"collective_seconds", "of a message's way", p.collective_seconds * 1e6, "us"});
  return rates;
}

// Of the columns that only pipelines have.
std::string PipelineColumns(const std::string& schedule, const std::string& bubble, bool shown) {
  return shown ? absl::StrFormat(" %-14s %9s", schedule, bubble) : "";
}

void AppendBest(const SearchResult& result, std::string* text) {
  size_t width = 20;
  bool pipelines = false;
  for (const RankedSetting& ranked : result.best) {
    width = std::max(width, MeshText(result.ranks, ranked.setting).size());
    pipelines = pipelines || ranked.setting.pipeline > 1;
  }
  const int mesh = static_cast<int>(width);
  absl::StrAppendFormat(text, "   %-*s%s %5s %5s %-9s %5s %6s %-7s %10s %9s %9s %10s %9s %6s\n",
                        mesh, "mesh", PipelineColumns("schedule", "bubble", pipelines), "stage",
                        "group", "recompute", "micro", "accum", "offload", "a rank", "step",
                        "exposed", absl::StrCat(result.unit, "/s"), "of a rank", "MFU");
  size_t number = 0;
  for (const RankedSetting& ranked : result.best) {
    const Setting& s = ranked.setting;
    const StepEstimate& e = ranked.estimate;
    const std::string of_pipeline = PipelineColumns(
        ScheduleText(s), s.pipeline > 1 ? HumanSeconds(e.bubble_seconds) : "-", pipelines);
    absl::StrAppendFormat(
        text, "%2d %-*s%s %5d %5s %-9s %5d %6s %-7s %10s %9s %9s %10s %9s %5.1f%%\n", ++number,
        mesh, MeshText(result.ranks, s), of_pipeline, s.stage, GroupText(s.group),
        Name(s.recompute), s.micro, AccumulationText(s), OffloadText(s.offload),
        HumanBytes(static_cast<double>(s.bytes)), HumanSeconds(e.seconds),
        HumanSeconds(e.exposed_seconds), Figure(e.tokens_per_second),
        Figure(e.tokens_per_second / result.ranks), 100 * e.mfu);
  }
  for (size_t i = 0; i < result.best.size(); ++i) {
    const Setting& s = result.best[i].setting;
    if (!s.offload) continue;
    absl::StrAppendFormat(text, "   %d needs %s of its host's memory for each rank\n", i + 1,
                          HumanBytes(static_cast<double>(s.host_bytes)));
  }
}

}  // namespace

std::string SearchTable(const SearchResult& result) {
  const DeviceProfile& profile = result.place.profile;
  const std::string hosts =
      profile.ranks_per_host > 0 ? absl::StrCat(", ", profile.ranks_per_host, " to a host") : "";
  std::string text = absl::StrFormat(
      "%d ranks%s, %s each: the best of %d settings\n", result.ranks, hosts,
      HumanBytes(static_cast<double>(result.place.memory_bytes)), result.candidates);
  AppendBest(result, &text);
  absl::StrAppend(&text, "\nthe choice rests on ", profile.name, ": ", profile.source, "\n");
  std::vector<std::string> firm;
  for (const RateText& rate : RatesOf(result.place)) {
    absl::StrAppendFormat(
        &text, "  %-22s %8s%-7s %s\n", rate.name, Figure(rate.value),
        absl::StrCat(absl::StrContains(Figure(rate.value), ' ') ? "" : " ", rate.unit), rate.what);
    bool changes = false;
    for (const Sensitivity& s : result.rests_on) {
      if (s.rate != rate.name || !s.instead.has_value()) continue;
      changes = true;
      absl::StrAppendFormat(&text, "    x %-4g  %s (%.2f times as fast as the choice)\n", s.factor,
                            SettingText(result.ranks, *s.instead), s.ratio);
    }
    if (!changes) firm.push_back(rate.name);
  }
  if (!firm.empty()) {
    absl::StrAppend(&text, "  the same at half and at twice of ", absl::StrJoin(firm, ", "), "\n");
  }
  return text;
}

std::string SearchJson(const SearchResult& result, int indent) {
  const DeviceProfile& profile = result.place.profile;
  Json json = {{"ranks", result.ranks},           {"ranks_per_host", profile.ranks_per_host},
               {"device", profile.name},          {"source", profile.source},
               {"candidates", result.candidates}, {"drafts", result.drafts}};
  Json& best = json["best"] = Json::array();
  for (const RankedSetting& ranked : result.best) {
    const StepEstimate& e = ranked.estimate;
    Json one = SettingJson(result.ranks, ranked.setting);
    one["bytes"] = ranked.setting.bytes;
    one["host_bytes"] = ranked.setting.host_bytes;
    one["seconds"] = e.seconds;
    one["exposed_seconds"] = e.exposed_seconds;
    one["bubble_seconds"] = e.bubble_seconds;
    one["communication_seconds"] = e.communication_seconds;
    one["bound"] = Name(e.bound);
    one["tokens_per_second"] = e.tokens_per_second;
    one["tokens_per_second_per_rank"] = e.tokens_per_second / result.ranks;
    one["mfu"] = e.mfu;
    best.push_back(std::move(one));
  }
  Json& rates = json["rates"] = Json::object();
  for (const RateText& rate : RatesOf(result.place)) {
    const bool micros = rate.unit == std::string("us");
    rates[rate.name] = micros ? rate.value * 1e-6 : rate.value;
  }
  Json& rests_on = json["rests_on"] = Json::array();
  for (const Sensitivity& s : result.rests_on) {
    Json one = {{"rate", s.rate}, {"factor", s.factor}};
    if (s.instead.has_value()) {
      one["instead"] = SettingJson(result.ranks, *s.instead);
      one["ratio"] = s.ratio;
    }
    rests_on.push_back(std::move(one));
  }
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::string> OverridesFor(const SearchResult& result) {
  const Setting& s = result.best.front().setting;
  std::vector<std::string> overrides = {absl::StrCat("resources.ranks=", result.ranks),
                                        absl::StrCat("resources.mesh.tensor=", s.tensor)};
  if (s.pipeline > 1 || result.had_pipeline) {
    overrides.push_back(absl::StrCat("resources.mesh.pipeline=", s.pipeline));
  }
  if (s.pipeline > 1) {
    overrides.push_back(absl::StrCat("resources.mesh.schedule=", Name(s.schedule)));
    if (s.chunks > 1) overrides.push_back(absl::StrCat("resources.mesh.chunks=", s.chunks));
  }
  if (s.context > 1 || result.had_context) {
    overrides.push_back(absl::StrCat("resources.mesh.context=", s.context));
  }
  if (s.expert > 1 || result.had_expert) {
    overrides.push_back(absl::StrCat("resources.mesh.expert=", s.expert));
  }
  if (s.side_by_side > 1 || result.had_side_by_side) {
    overrides.push_back(absl::StrCat("train.batch.side_by_side=", s.side_by_side));
  }
  overrides.insert(
      overrides.end(),
      {absl::StrCat("train.batch.micro=", s.micro), absl::StrCat("train.zero.stage=", s.stage),
       absl::StrCat("train.zero.group=", s.group),
       absl::StrCat("train.recompute=", Name(s.recompute)),
       absl::StrCat("train.offload.optimizer=", OffloadText(s.offload))});
  return overrides;
}

}  // namespace milepost::plan
