// Files that are sent along with jobs, through the services.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/pki/digest.h"
#include "coordinator/rpc/server_fixture.h"
#include "coordinator/store/files_store.h"
#include "milepost/v1/files.grpc.pb.h"

namespace milepost::coordinator {
namespace {

using testing::HasSubstr;

class FilesTest : public ServerTest {
 protected:
  std::unique_ptr<v1::FilesService::Stub> Stub() {
    return v1::FilesService::NewStub(MakeChannel(server_->address()));
  }
  static v1::SentFiles Sent(const std::string& text) {
    Sha256Stream digest;
    digest.Add(text);
    v1::SentFiles sent;
    sent.set_sha256(digest.Hex());
    sent.set_bytes(static_cast<int64_t>(text.size()));
    return sent;
  }
  grpc::Status Upload(const std::string& text, const v1::SentFiles& as, size_t piece = 3) {
    grpc::ClientContext context;
    v1::UploadFilesResponse response;
    auto writer = Stub()->UploadFiles(&context, &response);
    v1::UploadFilesRequest part;
    part.set_sha256(as.sha256());
    part.set_bytes(as.bytes());
    for (size_t at = 0; at < text.size(); at += piece) {
      part.set_data(text.substr(at, piece));
      if (!writer->Write(part)) break;
      part.clear_sha256();
    }
    writer->WritesDone();
    return writer->Finish();
  }
  bool Has(const std::string& sha256) {
    grpc::ClientContext context;
    v1::HasFilesRequest request;
    request.set_sha256(sha256);
    v1::HasFilesResponse response;
    EXPECT_TRUE(Stub()->HasFiles(&context, request, &response).ok());
    return response.stored();
  }
  grpc::Status Submit(const v1::SentFiles& sent, v1::Job* job, bool validate_only = false) {
    grpc::ClientContext context;
    v1::SubmitJobRequest request;
    request.mutable_spec()->set_name("script");
    request.mutable_spec()->mutable_script()->add_command("true");
    *request.mutable_spec()->mutable_script()->mutable_sent_files() = sent;
    request.set_validate_only(validate_only);
    return jobs_->SubmitJob(&context, request, job);
  }
  // What is read, or how it failed.
  std::string Read(const std::string& job, int64_t generation = 0) {
    grpc::ClientContext context;
    v1::ReadFilesRequest request;
    request.set_job(job);
    request.set_generation(generation);
    auto reader = Stub()->ReadFiles(&context, request);
    std::string all;
    v1::FilesPart part;
    while (reader->Read(&part)) all += part.data();
    const grpc::Status status = reader->Finish();
    return status.ok() ? all : absl::StrCat(status.error_code(), ": ", status.error_message());
  }
};

TEST_F(FilesTest, AJobIsSubmittedWithFilesThatAreThere) {
  const v1::SentFiles sent = Sent("an archive");
  v1::Job job;
  const grpc::Status refused = Submit(sent, &job);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(),
              HasSubstr("script.sent_files: the coordinator has no files of the digest"));
  EXPECT_TRUE(Submit(sent, &job, /*validate_only=*/true).ok()) << "only checked: nothing is sent";
  EXPECT_FALSE(Has(sent.sha256()));
  ASSERT_TRUE(Upload("an archive", sent).ok());
  EXPECT_TRUE(Has(sent.sha256()));
  ASSERT_TRUE(Submit(sent, &job).ok());
  EXPECT_EQ(Read(job.name()), "an archive");
  Start();
  EXPECT_EQ(Read(job.name()), "an archive") << "after a restart";
  v1::Job second;
  ASSERT_TRUE(Submit(job.spec().script().sent_files(), &second).ok()) << "as it is stored";
  EXPECT_EQ(Read(second.name()), "an archive");
}

TEST_F(FilesTest, WhatIsNotAsAnnouncedIsRefused) {
  const v1::SentFiles sent = Sent("an archive");
  EXPECT_THAT(Upload("another one", sent).error_message(), HasSubstr("more than the 10 bytes"));
  EXPECT_THAT(Upload("an", sent).error_message(), HasSubstr("has 2 bytes, and 10 were announced"));
  EXPECT_THAT(Upload("an archivE", sent).error_message(), HasSubstr("does not have the digest"));
  EXPECT_FALSE(Has(sent.sha256()));
  v1::SentFiles large = Sent(std::string((1 << 20) + 1, 'x'));
  EXPECT_THAT(Upload(std::string((1 << 20) + 1, 'x'), large, 2 << 20).error_message(),
              HasSubstr("at most 1048576 bytes in a message"));
}

TEST_F(FilesTest, ReadsAreAboutJobs) {
  v1::Job job;
  ASSERT_TRUE(Upload("an archive", Sent("an archive")).ok());
  ASSERT_TRUE(Submit(Sent("an archive"), &job).ok());
  EXPECT_THAT(Read("jobs/99"), HasSubstr("jobs/99"));
  EXPECT_THAT(Read(job.name(), /*generation=*/7), HasSubstr("10: ")) << "aborted: no such attempt";
  EXPECT_THAT(Read(ServerTest::Submit()), HasSubstr("has no files that were sent along"));
  std::ofstream(absl::StrCat(dir_, "/files/", Sent("an archive").sha256())) << "an archivE";
  EXPECT_THAT(Read(job.name()), HasSubstr("are damaged on the coordinator's disk"));
  EXPECT_THAT(Read(job.name()), HasSubstr("submit the job again"));
  ASSERT_TRUE(Upload("an archive", Sent("an archive")).ok());
  EXPECT_EQ(Read(job.name()), "an archive") << "sent again, they are whole again";
}

// An older worker finds no such folder, and says so.
TEST_F(FilesTest, WorkersThatDoNotKnowThemAreToldOfAFolder) {
  FakeWorker worker(server_->address(), "w", 1);
  ASSERT_TRUE(worker.Receive().has_welcome());
  v1::Job job;
  ASSERT_TRUE(Upload("an archive", Sent("an archive")).ok());
  ASSERT_TRUE(Submit(Sent("an archive"), &job).ok());
  const v1::StartRank start = worker.Receive().start_rank();
  EXPECT_THAT(start.spec().script().folder(), HasSubstr("its worker is too old"));
  EXPECT_EQ(start.spec().script().sent_files().bytes(), 10);
  EXPECT_EQ(job.spec().script().folder(), "");
}

TEST_F(FilesTest, TheyStayAsLongAsAJobHasThem) {
  v1::Job job;
  ASSERT_TRUE(Upload("an archive", Sent("an archive")).ok());
  ASSERT_TRUE(Submit(Sent("an archive"), &job).ok());
  ASSERT_TRUE(server_->coordinator().jobs().Cancel(job.name()).ok());
  FilesStore& store = server_->coordinator().store().files();
  const absl::Time later = absl::Now() + 2 * kFilesGrace;
  EXPECT_EQ(server_->coordinator().files().Collect(later), 0) << "it may be resumed";
  ASSERT_TRUE(server_->coordinator().jobs().Delete(job.name()).ok());
  EXPECT_EQ(server_->coordinator().files().Collect(absl::Now()), 0) << "not yet";
  EXPECT_EQ(server_->coordinator().files().Collect(later), 1);
  EXPECT_EQ(store.CountBytes().bytes, 0);
}

}  // namespace
}  // namespace milepost::coordinator
