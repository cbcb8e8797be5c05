#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "bench/control_plane/parts.h"
#include "client/api/clients.h"
#include "client/api/connection.h"
#include "common/check.h"
#include "common/rpc/status.h"
#include "milepost/v1/job.grpc.pb.h"

namespace milepost::bench {
namespace {

constexpr int kJobsPerArray = 1000;

// By arrays: the store writes each with one sync.
void Fill(int jobs, const std::string& address) {
  client::JobClient client(client::Connection::To(address));
  for (int left = jobs; left > 0; left -= kJobsPerArray) {
    v1::SubmitJobArrayRequest request;
    *request.mutable_spec() = Spec(1);
    for (int i = 0; i < std::min(left, kJobsPerArray); ++i) request.add_elements();
    const auto array = client.SubmitArray(std::move(request));
    MP_CHECK(array.ok()) << array.status().ToString();
  }
}

// Milliseconds of each page, from the first to the last.
std::vector<double> Pages(v1::JobService::StubInterface* jobs, v1::ListJobsRequest request,
                          int* listed) {
  std::vector<double> times;
  do {
    grpc::ClientContext context;
    v1::ListJobsResponse response;
    const double begin = Seconds();
    const grpc::Status status = jobs->ListJobs(&context, request, &response);
    times.push_back((Seconds() - begin) * 1e3);
    MP_CHECK(status.ok()) << status.error_message();
    *listed += response.jobs_size();
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return times;
}

nlohmann::json MeasurePages(const std::string& what, v1::JobService::StubInterface* jobs,
                            const v1::ListJobsRequest& request) {
  int listed = 0;
  const std::vector<double> times = Pages(jobs, request, &listed);
  const double worst = *std::max_element(times.begin(), times.end());
  printf(
      "job list, %s: %zu pages with %d jobs: first %.2f ms, last %.2f ms, median %.2f ms, worst "
      "%.2f ms\n",
      what.c_str(), times.size(), listed, times.front(), times.back(), Median(times), worst);
  return {{"pages", times.size()},      {"jobs", listed},
          {"first_ms", times.front()},  {"last_ms", times.back()},
          {"median_ms", Median(times)}, {"worst_ms", worst}};
}

}  // namespace

nlohmann::json MeasureLists(const Options& options) {
  const std::string dir = options.data_dir + "/lists";
  auto server = Serve(dir);
  double begin = Seconds();
  Fill(options.jobs, server->address());
  printf("%d jobs submitted as arrays of %d in %.1f s\n", options.jobs, kJobsPerArray,
         Seconds() - begin);
  auto jobs = v1::JobService::NewStub(MakeChannel(server->address()));
  nlohmann::json result = {{"jobs", options.jobs}, {"bar_ms", 20}};
  v1::ListJobsRequest request;
  result["pages_of_100"] = MeasurePages("pages of 100", jobs.get(), request);
  request.set_page_size(1000);
  result["pages_of_1000"] = MeasurePages("pages of 1000", jobs.get(), request);
  request.add_states(v1::JOB_STATE_FAILED);
  result["none_matches"] = MeasurePages("a filter that none matches", jobs.get(), request);
  server.reset();
  begin = Seconds();
  server = Serve(dir);
  jobs = v1::JobService::NewStub(MakeChannel(server->address()));
  grpc::ClientContext context;
  v1::ListJobsResponse response;
  MP_CHECK(jobs->ListJobs(&context, {}, &response).ok());
  result["restart_seconds"] = Seconds() - begin;
  printf("restart with them: %.2f s to serving\n", Seconds() - begin);
  return result;
}

}  // namespace milepost::bench
