#include "worker/container/container_image.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/checksum.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "common/unique_fd.h"
#include "worker/container/podman.h"

namespace milepost::worker {
namespace {

constexpr absl::Duration kInspectTime = absl::Minutes(2);
constexpr absl::Duration kBetweenTries = absl::Milliseconds(50);

absl::Status OfContainer(absl::string_view name, absl::StatusCode code, absl::string_view why) {
  return {code, absl::StrCat("script.container.image: ", name, ": ", why)};
}

// Without it all ranks of a host would fetch at once, which is no more than a waste: who cannot
// have it goes on. Empty: told to stop.
absl::StatusOr<UniqueFd> PullLock(const std::string& name, const ImageOptions& options,
                                  absl::Time deadline) {
  const std::string path = absl::StrCat(options.temporary_files, "/milepost-image-lock-", geteuid(),
                                        "-", absl::Hex(Xxh3(name), absl::kZeroPad16));
  UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  while (lock.ok() && flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && SteadyNow() < deadline) {
    if (options.give_up()) return absl::CancelledError("told to stop while an image is fetched");
    absl::SleepFor(kBetweenTries);
  }
  return lock;
}

// Empty: podman does not have it.
absl::StatusOr<std::string> Inspect(const std::string& name, const ImageOptions& options) {
  MP_ASSIGN_OR_RETURN(const PodmanAnswer answer,
                      AskPodman({"image", "inspect", "--", name},
                                {.patience = std::min(kInspectTime, options.patience),
                                 .give_up = options.give_up}));
  return answer.end.success() ? answer.out : std::string();
}

absl::StatusOr<std::string> Pull(const std::string& name, const ImageOptions& options,
                                 absl::Time deadline) {
  if (SteadyNow() >= deadline) {
    return OfContainer(name, absl::StatusCode::kUnavailable, "another rank is still fetching it");
  }
  spdlog::info("podman fetches {}", name);
  const absl::Time began = SteadyNow();
  const absl::StatusOr<PodmanAnswer> answer =
      AskPodman({"pull", "--quiet", "--", name},
                {.patience = deadline - SteadyNow(), .give_up = options.give_up});
  if (!answer.ok()) {
    return OfContainer(name, answer.status().code(), answer.status().message());
  }
  if (!answer->end.success()) return PullFailure(name, answer->err);
  spdlog::info("{} was fetched ({})", name,
               absl::FormatDuration(absl::Trunc(SteadyNow() - began, absl::Milliseconds(1))));
  const std::vector<std::string> lines =
      absl::StrSplit(absl::StripAsciiWhitespace(answer->out), '\n');
  return lines.back();
}

}  // namespace

absl::Status PullFailure(absl::string_view name, absl::string_view err) {
  // A registry that asks for a login often has no such image.
  constexpr absl::string_view kForGood[] = {
      "manifest unknown", "name unknown",     "not found",
      "no such file",     "unauthorized",     "authentication required",
      "not authorized",   "denied",           "invalid reference",
      "short-name",       "did not resolve",  "no image found",
      "invalid argument", "unknown transport"};
  // What podman itself lacks on this host.
  constexpr absl::string_view kOfHost[] = {"executable file not found", "newuidmap",
                                           "permission denied", "/run/user/", "/.local/"};
  const std::string lower = absl::AsciiStrToLower(PodmanError(err));
  const auto says = [&lower](absl::string_view sign) { return absl::StrContains(lower, sign); };
  const bool for_good = std::any_of(std::begin(kForGood), std::end(kForGood), says) &&
                        std::none_of(std::begin(kOfHost), std::end(kOfHost), says);
  return OfContainer(name,
                     for_good ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kUnavailable,
                     absl::StrCat("podman could not fetch it: ", PodmanError(err)));
}

absl::StatusOr<ContainerImage> ParseImage(absl::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool good = json.is_array() && !json.empty() && json[0].is_object() &&
                    json[0].contains("Id") && json[0]["Id"].is_string();
  if (!good) return absl::InternalError("`podman image inspect` did not say what was expected");
  ContainerImage image = {.id = json[0]["Id"].get<std::string>()};
  const nlohmann::json config = json[0].value("Config", nlohmann::json());
  if (!config.is_object() || !config.contains("Env") || !config["Env"].is_array()) return image;
  for (const nlohmann::json& variable : config["Env"]) {
    if (!variable.is_string()) continue;
    const std::pair<std::string, std::string> halves =
        absl::StrSplit(variable.get_ref<const std::string&>(), absl::MaxSplits('=', 1));
    image.environment.push_back(halves);
  }
  return image;
}

absl::StatusOr<ContainerImage> BringImage(const std::string& image, const ImageOptions& options) {
  const absl::Time deadline = SteadyNow() + options.patience;
  // Podman knows what it has by its name alone.
  const std::string name(absl::StripPrefix(image, "docker://"));
  MP_ASSIGN_OR_RETURN(std::string known, Inspect(name, options));
  if (known.empty()) {
    MP_ASSIGN_OR_RETURN(const UniqueFd lock, PullLock(name, options, deadline));
    // Another rank may have fetched it meanwhile.
    MP_ASSIGN_OR_RETURN(known, Inspect(name, options));
    if (known.empty()) {
      MP_ASSIGN_OR_RETURN(const std::string id, Pull(name, options, deadline));
      MP_ASSIGN_OR_RETURN(known, Inspect(id, options));
    }
  }
  return ParseImage(known);
}

}  // namespace milepost::worker
