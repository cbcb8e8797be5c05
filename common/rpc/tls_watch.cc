#include "common/rpc/tls_watch.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>

namespace milepost {

void LogTlsFiles(const absl::Status& status) {
  if (status.ok()) return spdlog::info("the TLS files are good again");
  spdlog::error("{}; new connections go on with the files before", std::string(status.message()));
}

TlsWatch::TlsWatch(TlsFolder folder, absl::Duration every,
                   std::function<void(const absl::Status&)> changed)
    : folder_(std::move(folder)), every_(every), changed_(std::move(changed)) {
  thread_ = std::thread([this] { Run(); });
}

TlsWatch::~TlsWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
}

void TlsWatch::Run() {
  absl::Status last;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stop_), every_)) return;
    }
    absl::Status now = CheckTlsFolder(folder_);
    if (now == last) continue;
    changed_(now);
    last = std::move(now);
  }
}

}  // namespace milepost
