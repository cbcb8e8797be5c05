#include "worker/script/position/rank_position.h"

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/regular_file.h"
#include "common/steady_time.h"
#include "common/unique_fd.h"
#include "common/utf8.h"
#include "worker/script/position/flight_record.h"
#include "worker/script/position/python_stack.h"
#include "worker/script/position/unpickle.h"

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostFileBytes = 16 << 20;
constexpr size_t kMostPlaceBytes = 256;
constexpr size_t kMostProcesses = 64;
constexpr size_t kMostLines = 100;
constexpr size_t kMostLineBytes = 256;
constexpr absl::Duration kBetweenLooks = absl::Milliseconds(10);
constexpr char kStacks[] = ".stacks", kAsk[] = ".ask", kCollectives[] = ".collectives";
constexpr char kNccl[] = "nccl_";  // before the rank's number
// Of each rank, in calls; a call takes less than 1 kB.
constexpr char kRecordedCalls[] = "2000";

// Whether the process runs and has a handler for the signal, which would end it otherwise.
bool Catches(pid_t pid, int signal) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  std::string line;
  while (std::getline(file, line)) {
    absl::string_view text = line;
    if (absl::ConsumePrefix(&text, "State:") && absl::StrContains(text, "Z")) return false;
    if (!absl::ConsumePrefix(&text, "SigCgt:")) continue;
    uint64_t mask = 0;
    return absl::SimpleHexAtoi(absl::StripAsciiWhitespace(text), &mask) &&
           (mask >> (signal - 1) & 1) != 0;
  }
  return false;
}

// Wakes the process's thread that waits for somebody to open the FIFO, if there is one.
void Wake(const std::string& fifo) {
  const UniqueFd closed_at_once(open(fifo.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
}

// The stack of the main thread comes last and ends where its program begins.
bool IsWhole(absl::string_view stacks) {
  return absl::EndsWith(stacks, " in <module>\n") ||
         absl::EndsWith(stacks, " in _run_module_as_main\n");
}

int64_t CallsBegun(const std::vector<v1::CollectivePosition>& positions) {
  int64_t begun = 0;
  for (const v1::CollectivePosition& position : positions) begun += position.begun();
  return begun;
}

}  // namespace

absl::StatusOr<RankPositions> RankPositions::Make(const std::string& scratch, std::string folder) {
  std::string path = absl::StrCat(scratch, "/position");
  std::error_code error;
  fs::create_directory(path, error);
  if (error) return absl::InternalError(absl::StrCat(path, ": ", error.message()));
  return RankPositions(std::move(path), std::move(folder));
}

std::vector<std::pair<std::string, std::string>> RankPositions::Environment() const {
  return {{"MILEPOST_POSITION_FOLDER", path_},
          {"TORCH_FR_BUFFER_SIZE", kRecordedCalls},
          {"TORCH_FR_DUMP_TEMP_FILE", absl::StrCat(path_, "/", kNccl)}};
}

std::string RankPositions::FileOf(pid_t pid, const char* kind) const {
  return absl::StrCat(path_, "/", pid, kind);
}

std::string RankPositions::TextOf(pid_t pid, const char* kind) const {
  return ReadRegularFile(FileOf(pid, kind), kMostFileBytes).value_or("");
}

// That have written something or may do so, ascending.
std::vector<pid_t> RankPositions::Processes() const {
  std::set<pid_t> pids;
  std::error_code error;
  for (fs::directory_iterator entry(path_, error), end; !error && entry != end;
       entry.increment(error)) {
    pid_t pid = 0;
    if (entry->path().extension() == kStacks &&
        absl::SimpleAtoi(entry->path().stem().string(), &pid) && pid > 1) {
      pids.insert(pid);
    }
    if (pids.size() >= kMostProcesses) break;
  }
  return {pids.begin(), pids.end()};
}

bool RankPositions::HasAnswered(pid_t pid, size_t before) const {
  std::error_code error;
  const bool asked_for_calls = fs::exists(FileOf(pid, kAsk), error);
  const std::string stacks = TextOf(pid, kStacks);
  return stacks.size() > before && IsWhole(stacks) &&
         (!asked_for_calls || fs::exists(FileOf(pid, kCollectives), error));
}

v1::RankPosition RankPositions::Ask(absl::Duration patience) {
  const absl::Time deadline = SteadyNow() + patience;
  before_.clear();
  for (const pid_t pid : Processes()) {
    if (!Catches(pid, StacksSignal())) continue;
    std::error_code error;
    const size_t before = TextOf(pid, kStacks).size();
    fs::remove(FileOf(pid, kCollectives), error);
    Wake(FileOf(pid, kAsk));
    if (kill(pid, StacksSignal()) == 0) before_[pid] = before;
  }
  std::map<pid_t, size_t> awaited = before_;
  while (!awaited.empty() && SteadyNow() < deadline) {
    absl::SleepFor(kBetweenLooks);
    std::erase_if(awaited, [this](const auto& one) {
      return HasAnswered(one.first, one.second) || !Catches(one.first, StacksSignal());
    });
  }
  return Read();
}

std::vector<v1::CollectivePosition> RankPositions::CollectivesOf(pid_t pid) const {
  return ReadRecords(nlohmann::json::parse(TextOf(pid, kCollectives), nullptr,
                                           /*allow_exceptions=*/false));
}

std::vector<v1::CollectivePosition> RankPositions::WrittenByNccl() const {
  std::error_code error;
  for (fs::directory_iterator entry(path_, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!absl::StartsWith(entry->path().filename().string(), kNccl)) continue;
    const auto text = ReadRegularFile(entry->path(), kMostFileBytes);
    if (!text.ok()) continue;
    const auto record = Unpickle(*text);
    // It is written when a call has taken too long.
    if (record.ok()) return ReadRecord(*record, "nccl", {.ns = absl::ToUnixNanos(absl::Now())});
  }
  return {};
}

v1::RankPosition RankPositions::Read() const {
  v1::RankPosition position;
  std::vector<v1::CollectivePosition> collectives;
  for (const pid_t pid : Processes()) {
    const std::string place = PlaceInStack(TextOf(pid, kStacks), folder_);
    std::vector<v1::CollectivePosition> own = CollectivesOf(pid);
    // The process that trains; else the first, which has started the others.
    if (!position.place().empty() && CallsBegun(own) <= CallsBegun(collectives)) continue;
    position.set_place(CutUtf8(place, kMostPlaceBytes));
    collectives = std::move(own);
  }
  const bool nccl = std::any_of(
      collectives.begin(), collectives.end(),
      [](const v1::CollectivePosition& one) { return absl::StartsWith(one.group(), "nccl:"); });
  for (v1::CollectivePosition& one :
       nccl ? std::vector<v1::CollectivePosition>() : WrittenByNccl()) {
    collectives.push_back(std::move(one));
  }
  KeepTelling(&collectives);
  position.mutable_collectives()->Assign(collectives.begin(), collectives.end());
  return position;
}

std::vector<std::string> RankPositions::StackLines() const {
  std::vector<std::string> lines;
  for (const auto& [pid, before] : before_) {
    const std::string text = TextOf(pid, kStacks);
    for (const absl::string_view line :
         absl::StrSplit(absl::string_view(text).substr(std::min(before, text.size())), '\n')) {
      if (lines.size() == kMostLines) return lines;
      if (!line.empty()) lines.push_back(CutUtf8(line, kMostLineBytes));
    }
  }
  return lines;
}

}  // namespace milepost::worker
