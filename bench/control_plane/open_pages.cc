#include "bench/control_plane/open_pages.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/check.h"

namespace milepost::bench {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

Subprocess Start(std::vector<std::string> argv, const std::string& out) {
  SpawnOptions options;
  options.argv = std::move(argv);
  std::filesystem::remove(out);  // of pages that were open before
  options.out = Redirect::File(out);
  auto child = Subprocess::Spawn(std::move(options));
  MP_CHECK(child.ok()) << child.status().ToString();
  return *std::move(child);
}

std::string TextOf(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// The HOST:PORT that `milepost web` has printed to `path`; empty: nothing yet.
std::string AddressIn(const std::string& path) {
  const std::string text = TextOf(path), scheme = "http://";
  const size_t begin = text.find(scheme), end = text.find('/', begin + scheme.size());
  if (begin == std::string::npos || end == std::string::npos) return "";
  return text.substr(begin + scheme.size(), end - begin - scheme.size());
}

}  // namespace

OpenPages::OpenPages(const Options& options) : options_(options) {
  const std::string printed = options.folder + "/web.log";
  web_ = Start({SiblingBinary("../bin/milepost"), "web", "--coordinator", options.coordinator,
                "--listen", "127.0.0.1:0"},
               printed);
  const absl::Time end = absl::Now() + kPatience;
  std::string address;
  while ((address = AddressIn(printed)).empty()) {
    MP_CHECK(absl::Now() < end) << "milepost web does not serve: " << TextOf(printed);
    absl::SleepFor(absl::Milliseconds(20));
  }
  pages_ = Start({"/usr/bin/python3", "bench/web_pages", "--at", address, "--web-pid",
                  absl::StrCat(web_->pid()), "--jobs", absl::StrCat(options.jobs), "--pages",
                  absl::StrCat(options.count), "--seconds", absl::StrCat(options.seconds)},
                 options.folder + "/pages.json");
}

nlohmann::json OpenPages::Close() {
  const auto end = pages_->Wait();
  const std::string text = TextOf(options_.folder + "/pages.json");
  MP_CHECK(end.ok() && end->success()) << "bench/web_pages: " << text;
  return nlohmann::json::parse(text);
}

}  // namespace milepost::bench
