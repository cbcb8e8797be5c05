#include "common/systemd/daemon_log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/log_format.h"

namespace milepost {
namespace {

int Priority(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::critical:
      return LOG_CRIT;
    case spdlog::level::err:
      return LOG_ERR;
    case spdlog::level::warn:
      return LOG_WARNING;
    case spdlog::level::info:
      return LOG_INFO;
    default:
      return LOG_DEBUG;
  }
}

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
}

// The first "COLLECTION/name" in the line; empty: there is none. A name ends before a full stop
// that ends a sentence.
std::string FirstNamed(absl::string_view line, absl::string_view collection) {
  for (size_t at = line.find(collection); at != absl::string_view::npos;
       at = line.find(collection, at + 1)) {
    if (at > 0 && (IsNameCharacter(line[at - 1]) || line[at - 1] == '/')) continue;
    size_t end = at + collection.size();
    while (end < line.size() && IsNameCharacter(line[end])) ++end;
    while (line[end - 1] == '.') --end;
    if (end > at + collection.size()) return std::string(line.substr(at, end - at));
  }
  return "";
}

class JournalSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit JournalSink(std::string worker) : worker_(std::move(worker)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string line = EscapeLogMessage({message.payload.data(), message.payload.size()});
    std::vector<std::string> fields = JournalFields(line, worker_);
    fields.push_back(absl::StrCat("MESSAGE=", line));
    fields.push_back(absl::StrCat("PRIORITY=", Priority(message.level)));
    std::vector<iovec> parts;
    for (std::string& field : fields) parts.push_back({field.data(), field.size()});
    if (sd_journal_sendv(parts.data(), static_cast<int>(parts.size())) == 0) return;
    // The stream that the journal reads takes priorities too.
    std::fprintf(stderr, "<%d>%s\n", Priority(message.level), line.c_str());
  }
  void flush_() override {}

 private:
  const std::string worker_;
};

}  // namespace

bool IsJournal(const char* stream, int fd) {
  struct stat found {};
  if (stream == nullptr || fstat(fd, &found) != 0) return false;
  return absl::StrCat(found.st_dev, ":", found.st_ino) == stream;
}

std::vector<std::string> JournalFields(absl::string_view line, const std::string& worker) {
  std::vector<std::string> fields;
  if (std::string job = FirstNamed(line, "jobs/"); !job.empty()) {
    fields.push_back(absl::StrCat("MILEPOST_JOB=", job));
  }
  if (std::string id = worker.empty() ? FirstNamed(line, "workers/") : worker; !id.empty()) {
    fields.push_back(absl::StrCat("MILEPOST_WORKER=", id));
  }
  return fields;
}

void StartDaemonLog(const std::string& name, const std::string& pattern,
                    const std::string& worker) {
  spdlog::drop(name);
  if (IsJournal(std::getenv("JOURNAL_STREAM"), STDERR_FILENO)) {
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>(name, std::make_shared<JournalSink>(worker)));
    return;
  }
  spdlog::set_default_logger(spdlog::stderr_logger_mt(name));
  spdlog::set_formatter(LogFormatter(pattern));
}

}  // namespace milepost
