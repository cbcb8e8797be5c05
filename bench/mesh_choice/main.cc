// Whether the search's choice is the best one: cases of small models and slow links, each trained
// for real under every setting that the search may choose. Ranks are threads of this process, with
// one core each; their links are as slow as the case says. Prints a line of JSON for each case, and
// a summary.
//
//   build/dev/bench/mesh_choice --steps 3 --rounds 4 --again 1.2
//
// Times are what the machine gives: nothing else should run. All settings are run once; those that
// were nearly as fast as the fastest, and the choice, then run again by turns. Of each run the
// median step counts, and of these the fastest.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/mesh_choice/throttled.h"
#include "common/philox.h"
#include "common/short_slices.h"
#include "common/spec/auto_fields.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "engine/comm/in_process.h"
#include "engine/data/npy.h"
#include "engine/measure/cpu_bench.h"
#include "engine/plan/fit/mesh_search.h"
#include "engine/runtime/session/training_session.h"

namespace milepost::bench {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kVocabulary = 512;

struct Flags {
  int cases = 30;
  int first = 0;
  int steps = 5;
  int rounds = 5;
  double again = 1.2;  // what comes within so many times the fastest runs again
  bool all = false;    // print every setting, with what was expected
};

struct Model {
  const char* name;
  bool llama;
  int layers, width, heads, kv_heads, hidden;
  int64_t sequence, batch;
};

constexpr Model kModels[] = {
    {"gpt2 4x128", false, 4, 128, 4, 0, 0, 128, 8},
    {"gpt2 2x256", false, 2, 256, 4, 0, 0, 64, 8},
    {"gpt2 8x128, long", false, 8, 128, 2, 0, 0, 256, 4},
    {"llama 4x128", true, 4, 128, 4, 2, 384, 128, 8},
    {"llama 2x256", true, 2, 256, 4, 4, 768, 64, 16},
    {"llama 6x192, long", true, 6, 192, 6, 2, 512, 256, 4},
};
constexpr double kLinks[] = {3e7, 1e8, 3e8, 1e9, 3e9};  // bytes a second
constexpr double kLatency = 1e-4;
constexpr int kModelCount = std::size(kModels);
constexpr int kCaseCount = kModelCount * static_cast<int>(std::size(kLinks));

template <typename Family>
void SetSizes(const Model& model, Family* family) {
  family->set_layers(model.layers);
  family->set_width(model.width);
  family->set_heads(model.heads);
  family->set_context(model.sequence);
  family->set_vocabulary(kVocabulary);
}

// All that a search chooses is left open.
v1::JobSpec OpenSpec(const Model& model, const std::string& data) {
  v1::JobSpec spec;
  spec.set_name("choice");
  if (model.llama) {
    v1::LlamaSpec* llama = spec.mutable_model()->mutable_llama();
    SetSizes(model, llama);
    llama->set_kv_heads(model.kv_heads);
    llama->set_hidden(model.hidden);
  } else {
    SetSizes(model, spec.mutable_model()->mutable_gpt2());
  }
  spec.mutable_data()->set_train(data);
  spec.mutable_data()->set_sequence_length(model.sequence);
  spec.mutable_resources()->set_ranks(kRanks);
  spec.mutable_resources()->mutable_mesh()->set_tensor(kAuto);
  v1::TrainSpec* train = spec.mutable_train();
  train->set_steps(1000000);
  train->set_precision(v1::PRECISION_FP32);
  train->mutable_batch()->set_global(model.batch);
  train->mutable_batch()->set_micro(kAuto);
  train->mutable_zero()->set_stage(kAuto);
  NormalizeJobSpec(&spec);
  return spec;
}

absl::Status WriteTokens(const std::string& path) {
  MP_ASSIGN_OR_RETURN(auto writer, data::NpyWriter::Create(path, data::TokenType::kUint32));
  std::vector<uint32_t> ids(1 << 16);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = Philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, {1, 2})[0] %
             static_cast<uint32_t>(kVocabulary);
  }
  MP_RETURN_IF_ERROR(writer->Append(ids));
  return writer->Finish();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

absl::Status RunRank(const v1::JobSpec& spec, comm::Communicator* calls,
                     runtime::StageTransfers transfers, int steps, std::vector<double>* seconds) {
  runtime::SessionOptions options;
  options.transfers = transfers;
  MP_ASSIGN_OR_RETURN(auto session, runtime::TrainingSession::Create(spec, options, calls));
  MP_RETURN_IF_ERROR(session->InitializeParameters());
  MP_RETURN_IF_ERROR(session->Step(false).status());
  for (int i = 0; i < steps; ++i) {
    MP_ASSIGN_OR_RETURN(const runtime::StepReport report, session->Step(false));
    seconds->push_back(report.seconds);
  }
  return absl::OkStatus();
}

// Of a step, by the slower rank.
absl::StatusOr<double> StepSeconds(const v1::JobSpec& spec, const Link& link, int steps) {
  std::vector<std::unique_ptr<ThrottledCommunicator>> slow[3];  // calls, activations, gradients
  std::vector<std::unique_ptr<comm::Communicator>> inner[3];
  for (int i = 0; i < 3; ++i) {
    inner[i] = comm::MakeInProcessGroup(kRanks);
    for (const auto& one : inner[i]) {
      slow[i].push_back(std::make_unique<ThrottledCommunicator>(one.get(), link));
    }
  }
  std::vector<double> seconds[kRanks];
  absl::Status status[kRanks];
  std::vector<std::thread> threads;
  const bool stages = spec.resources().mesh().pipeline() > 1;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      runtime::StageTransfers transfers;
      if (stages) transfers = {slow[1][rank].get(), slow[2][rank].get()};
      status[rank] = RunRank(spec, slow[0][rank].get(), transfers, steps, &seconds[rank]);
      if (!status[rank].ok()) slow[0][rank]->Abort("a rank failed");
    });
  }
  for (std::thread& thread : threads) thread.join();
  double slowest = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    MP_RETURN_IF_ERROR(status[rank]);
    slowest = std::max(slowest, Median(seconds[rank]));
  }
  return slowest;
}

struct Tried {
  plan::Setting setting;
  v1::JobSpec spec;
  double once = 0;
  std::vector<double> again;

  // Of the fastest run: whatever else the machine does only slows one down.
  double Seconds() const {
    return again.empty() ? once : *std::min_element(again.begin(), again.end());
  }
};

std::string TextOf(const plan::Setting& setting) {
  std::string text = plan::MeshText(kRanks, setting);
  if (setting.pipeline > 1 && setting.schedule == plan::PipelineSchedule::kZeroBubble) {
    text += ", zero-bubble";
  }
  if (setting.pipeline > 1 && setting.schedule == plan::PipelineSchedule::kInterleaved) {
    text += ", interleaved by " + std::to_string(setting.chunks);
  }
  return text + ", stage " + std::to_string(setting.stage) + ", micro-batch " +
         std::to_string(setting.micro) +
         (setting.side_by_side > 1 ? ", " + std::to_string(setting.side_by_side) + " side by side"
                                   : "");
}

bool Same(const plan::Setting& a, const plan::Setting& b) { return TextOf(a) == TextOf(b); }

// And those that exchange anything within a micro-batch with two of these side by side.
std::vector<plan::Setting> AllSettings(const v1::JobSpec& open, const plan::MeshSpace& space,
                                       const plan::RankPlace& place) {
  std::vector<plan::Setting> settings = plan::Candidates(open, space, place);
  const size_t in_turn = settings.size();
  for (size_t i = 0; i < in_turn; ++i) {
    plan::Setting setting = settings[i];
    const bool exchanges = setting.tensor > 1 || setting.context > 1 || setting.stage == 3;
    if (setting.pipeline > 1 || !exchanges || setting.accumulation % 2 != 0) continue;
    setting.side_by_side = 2;
    settings.push_back(setting);
  }
  return settings;
}

absl::StatusOr<std::vector<Tried>> TryAll(const v1::JobSpec& open, const plan::MeshSpace& space,
                                          const plan::RankPlace& place, const Link& link,
                                          const plan::Setting& choice, const Flags& flags) {
  std::vector<Tried> tried;
  double fastest = 0;
  for (const plan::Setting& setting : AllSettings(open, space, place)) {
    Tried one = {.setting = setting, .spec = plan::WithSetting(open, setting)};
    MP_ASSIGN_OR_RETURN(one.once, StepSeconds(one.spec, link, 1));
    fastest = tried.empty() ? one.once : std::min(fastest, one.once);
    tried.push_back(std::move(one));
  }
  for (int round = 0; round < flags.rounds; ++round) {
    for (Tried& one : tried) {
      if (one.once > flags.again * fastest && !Same(one.setting, choice)) continue;
      MP_ASSIGN_OR_RETURN(const double seconds, StepSeconds(one.spec, link, flags.steps));
      one.again.push_back(seconds);
    }
  }
  return tried;
}

// What `measure` says on the ranks of such a link, the most of it.
absl::StatusOr<double> OnLink(
    const Link& link, const std::function<absl::StatusOr<double>(comm::Communicator&)>& measure) {
  auto inner = comm::MakeInProcessGroup(kRanks);
  absl::StatusOr<double> measured[kRanks];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      ThrottledCommunicator slow(inner[rank].get(), link);
      measured[rank] = measure(slow);
    });
  }
  for (std::thread& thread : threads) thread.join();
  double most = 0;
  for (const absl::StatusOr<double>& one : measured) {
    MP_RETURN_IF_ERROR(one.status());
    most = std::max(most, *one);
  }
  return most;
}

// Until `count` is as large.
void Await(const std::atomic<int>& count, int least) {
  for (int now = count.load(); now < least; now = count.load()) count.wait(now);
}
void Raise(std::atomic<int>& count) {
  count.fetch_add(1);
  count.notify_all();
}

// Of all-reduces of so many bytes, the median. As in a step (runtime/executor) a thread of its own
// makes them, which waits for each, and is waited for.
absl::StatusOr<double> AllReduceSeconds(size_t bytes, comm::Communicator& ranks) {
  constexpr int kRepeats = 41;
  std::vector<float> values(bytes / sizeof(float), 1.0f);
  std::atomic<int> asked = 0, made = 0;
  absl::Status status;
  std::thread communicates([&] {
    TakeShortSlices();
    for (int i = 0; i < kRepeats; ++i) {
      Await(asked, i + 1);
      status.Update(ranks.AllReduce(absl::MakeSpan(values)));
      Raise(made);
    }
  });
  std::vector<double> seconds;
  for (int i = 0; i < kRepeats; ++i) {
    const double begin = SteadySeconds();
    Raise(asked);
    Await(made, i + 1);
    seconds.push_back(SteadySeconds() - begin);
  }
  communicates.join();
  MP_RETURN_IF_ERROR(status);
  return Median(std::move(seconds));
}

// The device profile of a rank at the end of such a link. What `here` says of links is of processes
// that are connected through loopback; these ranks copy from each other's memory, and sleep.
absl::StatusOr<plan::DeviceProfile> WithLink(plan::DeviceProfile here, const Link& link) {
  constexpr size_t kFew = 64, kMany = 4 << 20;
  constexpr double kNoLimit = 1e18;
  const Link wide = {kNoLimit, link.latency_seconds};
  const auto seconds_of = [&](size_t bytes) {
    return OnLink(wide, [=](comm::Communicator& ranks) { return AllReduceSeconds(bytes, ranks); });
  };
  MP_ASSIGN_OR_RETURN(here.collective_seconds, seconds_of(kFew));
  MP_ASSIGN_OR_RETURN(const double many, seconds_of(kMany));
  const double copy = std::max(many - here.collective_seconds, 1e-9);
  here.host_bandwidth = static_cast<double>(kMany) / copy;
  // What is on its way is copied first.
  here.network_bandwidth = 1 / (1 / here.host_bandwidth + 1 / link.bytes_per_second);
  here.ranks_per_host = 1;
  return here;
}

absl::StatusOr<nlohmann::ordered_json> RunCase(int index, const std::string& data,
                                               const plan::DeviceProfile& here,
                                               const Flags& flags) {
  const Model& model = kModels[index % kModelCount];
  const Link link = {kLinks[index / kModelCount], kLatency};
  plan::RankPlace place = {.memory_bytes = int64_t{8} << 30, .memory_of = "here"};
  MP_ASSIGN_OR_RETURN(place.profile, WithLink(here, link));
  const v1::JobSpec open = OpenSpec(model, data);
  MP_RETURN_IF_ERROR(ValidateJobSpec(open));
  plan::MeshSpace space = plan::WholeSpace(open, place);
  space.contexts = true;
  space.groups = false;
  space.recomputes = {plan::Recompute::kNone};  // there is memory enough
  plan::MeshSearch search(open, space, place);
  MP_ASSIGN_OR_RETURN(const std::vector<plan::RankedSetting> best, search.Best(1));
  if (best.empty()) return absl::InternalError("nothing fits");
  MP_ASSIGN_OR_RETURN(const std::vector<Tried> tried,
                      TryAll(open, space, place, link, best[0].setting, flags));
  const auto seconds = [](const Tried& a, const Tried& b) { return a.Seconds() < b.Seconds(); };
  const Tried& fastest = *std::min_element(tried.begin(), tried.end(), seconds);
  const Tried& slowest = *std::max_element(tried.begin(), tried.end(), seconds);
  const auto chosen = std::find_if(tried.begin(), tried.end(), [&](const Tried& one) {
    return Same(one.setting, best[0].setting);
  });
  if (chosen == tried.end()) return absl::InternalError("the choice is no candidate");
  nlohmann::ordered_json result{{"model", model.name},
                                {"link_megabytes_per_second", link.bytes_per_second / 1e6},
                                {"collective_seconds", place.profile.collective_seconds},
                                {"host_bandwidth", place.profile.host_bandwidth},
                                {"settings", tried.size()},
                                {"choice", TextOf(chosen->setting)},
                                {"expected_seconds", best[0].estimate.seconds},
                                {"seconds", chosen->Seconds()},
                                {"fastest", TextOf(fastest.setting)},
                                {"fastest_seconds", fastest.Seconds()},
                                {"slowest_seconds", slowest.Seconds()},
                                {"ratio", chosen->Seconds() / fastest.Seconds()}};
  if (!flags.all) return result;
  for (const Tried& one : tried) {
    plan::Setting expected = one.setting;
    MP_RETURN_IF_ERROR(plan::Assess(open, place, /*exact=*/true, &expected));
    result["all"][TextOf(one.setting)] = {expected.seconds, one.Seconds()};
  }
  return result;
}

absl::Status Run(const Flags& flags, const std::string& data) {
  MP_RETURN_IF_ERROR(WriteTokens(data));
  MP_ASSIGN_OR_RETURN(const plan::DeviceProfile here, runtime::MeasureCpu({.threads = 1}));
  std::vector<double> ratios;
  for (int i = flags.first; i < std::min(flags.first + flags.cases, kCaseCount); ++i) {
    MP_ASSIGN_OR_RETURN(const nlohmann::ordered_json result, RunCase(i, data, here, flags));
    ratios.push_back(result["ratio"]);
    std::puts(result.dump().c_str());
    std::fflush(stdout);
  }
  if (ratios.empty()) return absl::InvalidArgumentError("no cases");
  const auto within =
      std::count_if(ratios.begin(), ratios.end(), [](double r) { return r <= 1.05; });
  const nlohmann::ordered_json summary = {
      {"cases", ratios.size()},
      {"within_5_percent", within},
      {"median_ratio", Median(ratios)},
      {"worst_ratio", *std::max_element(ratios.begin(), ratios.end())},
      {"cores", std::thread::hardware_concurrency()},
      {"profile", nlohmann::ordered_json::parse(plan::ProfileJson(here))}};
  std::puts(summary.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace milepost::bench

int main(int argc, char** argv) {
  milepost::bench::Flags flags;
  CLI::App app{"The search's choice beside every setting, trained for real over slow links."};
  app.add_option("--cases", flags.cases)->check(CLI::Range(1, 30));
  app.add_option("--first", flags.first, "the case to begin with")->check(CLI::Range(0, 29));
  app.add_option("--steps", flags.steps, "of a run that counts")->check(CLI::Range(1, 100));
  app.add_option("--rounds", flags.rounds, "runs that count")->check(CLI::Range(1, 100));
  app.add_option("--again", flags.again, "run what is within so many times the fastest again");
  app.add_flag("--all", flags.all, "print every setting: seconds expected and taken");
  CLI11_PARSE(app, argc, argv);
  std::string folder = (std::filesystem::temp_directory_path() / "mesh-choice-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 1;
  const absl::Status status = milepost::bench::Run(flags, folder + "/samples.npy");
  std::filesystem::remove_all(folder);
  if (status.ok()) return 0;
  std::fprintf(stderr, "mesh_choice: %s\n", status.ToString().c_str());
  return 1;
}
