#include <fcntl.h>
#include <grpcpp/generic/generic_stub.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "bench/control_plane/parts.h"
#include "client/api/clients.h"
#include "client/api/connection.h"
#include "common/check.h"
#include "common/unique_fd.h"
#include "coordinator/election/etcd_process.h"
#include "coordinator/store/store.h"
#include "etcd/etcd.grpc.pb.h"

namespace milepost::bench {
namespace {

using coordinator::EtcdProcess;

std::atomic<int64_t> syncs = 0;

// Callers that each do one thing after the other for some time. Done per second.
double RateOf(const Options& options, const std::function<std::function<void()>()>& new_caller) {
  std::atomic<int64_t> done = 0;
  const double begin = Seconds();
  std::vector<std::thread> callers;
  for (int i = 0; i < options.callers; ++i) {
    callers.emplace_back([&] {
      const std::function<void()> call = new_caller();
      while (Seconds() - begin < options.seconds) {
        call();
        ++done;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  return static_cast<double>(done) / (Seconds() - begin);
}

double SubmissionRate(const Options& options, const std::string& address) {
  return RateOf(options, [&] {
    auto jobs = std::make_shared<client::JobClient>(client::Connection::To(address));
    return [jobs, spec = Spec(1)] {
      const auto job = jobs->Submit(spec);
      MP_CHECK(job.ok()) << job.status().ToString();
    };
  });
}

// Each put has a key of its own, as each job has.
double PutRate(const Options& options, const std::shared_ptr<grpc::Channel>& channel,
               size_t bytes) {
  using Stub = grpc::TemplatedGenericStub<etcdserverpb::PutRequest, etcdserverpb::PutResponse>;
  static std::atomic<int64_t> number = 0;
  return RateOf(options, [&] {
    auto stub = std::make_shared<Stub>(channel);
    return [stub, value = std::string(bytes, 'v')] {
      etcdserverpb::PutRequest request;
      request.set_key(absl::StrCat("jobs/", number++));
      request.set_value(value);
      etcdserverpb::PutResponse response;
      grpc::ClientContext context;
      absl::Notification finished;
      grpc::Status status;
      stub->UnaryCall(&context, "/etcdserverpb.KV/Put", {}, &request, &response,
                      [&](grpc::Status its) {
                        status = std::move(its);
                        finished.Notify();
                      });
      finished.WaitForNotification();
      MP_CHECK(status.ok()) << status.error_message();
    };
  });
}

// What the disk allows one writer: a record is appended and synced, again and again.
double SyncRate(const Options& options, size_t bytes) {
  const std::string path = options.data_dir + "/synced";
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const std::string record(bytes, 'v');
  int64_t done = 0;
  const double begin = Seconds();
  while (Seconds() - begin < options.seconds / 2) {
    MP_CHECK(write(fd.get(), record.data(), bytes) == static_cast<ssize_t>(bytes));
    MP_CHECK(fdatasync(fd.get()) == 0);
    ++done;
  }
  const double rate = static_cast<double>(done) / (Seconds() - begin);
  std::filesystem::remove(path);
  return rate;
}

// Of what is stored of a job that was submitted.
size_t RecordBytes(const std::string& dir) {
  {
    auto server = Serve(dir);
    MP_CHECK(client::JobClient(client::Connection::To(server->address())).Submit(Spec(1)).ok());
  }
  const auto store = coordinator::Store::Open({.dir = dir});
  MP_CHECK(store.ok()) << store.status().ToString();
  const auto state = (*store)->LoadState();
  MP_CHECK(state.ok() && !state->jobs().empty());
  return state->jobs().begin()->second.ByteSizeLong();
}

}  // namespace

nlohmann::json MeasureSubmissions(const Options& options) {
  const std::string dir = options.data_dir + "/submissions";
  const size_t bytes = RecordBytes(dir);
  auto server = Serve(dir);
  std::optional<EtcdProcess> etcd;
  if (EtcdProcess::Available()) {
    etcd.emplace(EtcdProcess::Options{.folder = options.data_dir});
    MP_CHECK(etcd->Start().ok());
  } else {
    printf("there is no etcd here (Debian: etcd-server)\n");
  }
  std::vector<double> ours, its, floor, together;
  for (int round = 0; round < options.rounds; ++round) {
    floor.push_back(SyncRate(options, bytes));
    const int64_t before = syncs;
    ours.push_back(SubmissionRate(options, server->address()));
    together.push_back(ours.back() * options.seconds / static_cast<double>(syncs - before));
    if (etcd.has_value()) {
      its.push_back(PutRate(options, MakeChannel(etcd->endpoint()), bytes));
    }
    printf("  round %d: %.0f submissions, %.0f puts, %.0f syncs per second\n", round, ours.back(),
           its.empty() ? 0 : its.back(), floor.back());
  }
  nlohmann::json result = {{"callers", options.callers},
                           {"record_bytes", bytes},
                           {"submissions_per_second", Median(ours)},
                           {"rounds", ours},
                           {"bar_per_second", 1000},
                           {"syncs_per_second", Median(floor)},
                           {"submissions_per_sync", Median(together)}};
  printf(
      "submissions: %.0f per second, durable, %d callers over gRPC, %.1f to a sync; the disk: "
      "%.0f syncs per second by one writer\n",
      Median(ours), options.callers, Median(together), Median(floor));
  if (its.empty()) return result;
  result["etcd_puts_per_second"] = Median(its);
  result["etcd_rounds"] = its;
  result["ratio_to_etcd"] = Median(ours) / Median(its);
  printf("etcd: %.0f puts of %zu bytes per second; submissions are %.2f times that\n", Median(its),
         bytes, Median(ours) / Median(its));
  return result;
}

}  // namespace milepost::bench

// RocksDB's calls come here: they are counted.
extern "C" int fdatasync(int fd) {
  ++milepost::bench::syncs;
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}
