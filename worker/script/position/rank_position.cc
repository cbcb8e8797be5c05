#include "worker/script/position/rank_position.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

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
constexpr size_t kMostProcesses = 64;  // that are asked
constexpr size_t kMostFiles = 4096;    // of processes that are looked at
constexpr size_t kMostLines = 100;
constexpr size_t kMostLineBytes = 256;
constexpr absl::Duration kBetweenLooks = absl::Milliseconds(10);
constexpr char kStacks[] = ".stacks", kAsk[] = ".ask", kCollectives[] = ".collectives";
constexpr char kNccl[] = "nccl_";  // before the rank's number
// Of each rank, in calls; a call takes less than 1 kB.
constexpr char kRecordedCalls[] = "2000";

// Whether the process runs and has a handler for the signal, which would end it otherwise. It is
// `process` that is in /proc, or in another such folder.
bool Catches(const std::string& process, int signal) {
  std::ifstream file(process + "/status");
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

// A process of a container has another number here.
bool Send(const std::string& process, int signal) {
  const UniqueFd folder(open(process.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return folder.ok() && syscall(SYS_pidfd_send_signal, folder.get(), signal, nullptr, 0) == 0;
}

// A program may have closed all descriptors that it did not know. Its stacks would go elsewhere.
bool HasOpen(const std::string& process, const std::string& file) {
  std::error_code error;
  for (fs::directory_iterator entry(process + "/fd", error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;
    if (fs::equivalent(entry->path(), file, gone)) return true;
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

int64_t TimeOf(const nlohmann::json& records) {
  const bool known =
      records.is_object() && records.contains("time_ns") && records["time_ns"].is_number_integer();
  return known ? records["time_ns"].get<int64_t>() : 0;
}

bool IsOfNccl(const v1::CollectivePosition& position) {
  return absl::StartsWith(position.group(), "nccl:");
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
    if (pids.size() >= kMostFiles) break;
  }
  return {pids.begin(), pids.end()};
}

RankPositions::Written RankPositions::WrittenBy(pid_t pid) const {
  std::error_code none;
  return {TextOf(pid, kStacks).size(), fs::last_write_time(FileOf(pid, kCollectives), none)};
}

bool RankPositions::HasAnswered(pid_t pid, const Written& before) const {
  std::error_code error;
  const bool asked_for_calls = fs::exists(FileOf(pid, kAsk), error);
  const Written now = WrittenBy(pid);
  return now.stacks > before.stacks && IsWhole(TextOf(pid, kStacks)) &&
         (!asked_for_calls || now.collectives != before.collectives);
}

v1::RankPosition RankPositions::Ask(const std::string& processes, absl::Duration patience) {
  const absl::Time deadline = SteadyNow() + patience;
  const auto process_of = [&](pid_t pid) { return absl::StrCat(processes, "/", pid); };
  before_.clear();
  for (const pid_t pid : Processes()) {
    if (before_.size() >= kMostProcesses) break;
    const std::string stacks = FileOf(pid, kStacks);
    const std::string process = process_of(pid);
    if (!Catches(process, StacksSignal()) || !HasOpen(process, stacks)) continue;
    // What is there stays: the process may be ending, and have said all that it will.
    const Written before = WrittenBy(pid);
    Wake(FileOf(pid, kAsk));
    if (Send(process, StacksSignal())) before_[pid] = before;
  }
  std::map<pid_t, Written> awaited = before_;
  while (!awaited.empty() && SteadyNow() < deadline) {
    absl::SleepFor(kBetweenLooks);
    std::erase_if(awaited, [&](const auto& one) {
      return HasAnswered(one.first, one.second) || !Catches(process_of(one.first), StacksSignal());
    });
  }
  std::vector<pid_t> asked;
  for (const auto& [pid, before] : before_) asked.push_back(pid);
  return Read(asked);
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

v1::RankPosition RankPositions::Read(const std::vector<pid_t>& pids) const {
  v1::RankPosition position;
  std::vector<v1::CollectivePosition> collectives;
  int64_t newest = 0;
  for (const pid_t pid : pids) {
    const std::string place = PlaceInStack(TextOf(pid, kStacks), folder_);
    const auto records = nlohmann::json::parse(TextOf(pid, kCollectives), nullptr,
                                               /*allow_exceptions=*/false);
    // The process that trains; else the first, which has started the others.
    if (TimeOf(records) <= newest && !position.place().empty()) continue;
    newest = TimeOf(records);
    position.set_place(CutUtf8(place, kMostPlaceBytes));
    collectives = ReadRecords(records);
  }
  const std::vector<v1::CollectivePosition> written = WrittenByNccl();
  if (!written.empty()) std::erase_if(collectives, IsOfNccl);
  collectives.insert(collectives.end(), written.begin(), written.end());
  KeepTelling(&collectives);
  position.mutable_collectives()->Assign(collectives.begin(), collectives.end());
  return position;
}

std::vector<std::string> RankPositions::StackLines() const {
  std::vector<std::string> lines;
  for (const auto& [pid, before] : before_) {
    const std::string text = TextOf(pid, kStacks);
    for (const absl::string_view line : absl::StrSplit(
             absl::string_view(text).substr(std::min(before.stacks, text.size())), '\n')) {
      if (lines.size() == kMostLines) return lines;
      if (!line.empty()) lines.push_back(CutUtf8(line, kMostLineBytes));
    }
  }
  return lines;
}

}  // namespace milepost::worker
