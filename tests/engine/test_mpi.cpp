// Run by mpirun, see CMakeLists.txt: `test_mpi conformance|owned|ahead|first_cause|stalled`.
// Rank 0 prints the verdict. Open MPI ends the job when a rank dies, so there are no tests of dead
// ranks.
#include <fmt/format.h>
#include <mpi.h>

#include <stdexcept>
#include <string>
#include <thread>

#include "dgc/collectives.h"
#include "dgc/engines.h"
#include "support/conformance.h"

namespace {

using namespace std::chrono_literals;

int posted = 0;     // receives
int cancelled = 0;  // requests

void expect(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what);
}

void conformance() {
  const auto group = dgc::make_group("auto", 60s);
  expect(group->engine() == "mpi", "mpirun chooses mpi");
  expect(group->host() == dgc::this_host(), "host");
  dgc::test::check_conformance(*group);
  // Groups of the same process do not disturb each other.
  const auto second = dgc::make_mpi_group(60s, "another");
  expect(second->host() == "another", "host_id");
  dgc::barrier(*second);
  dgc::barrier(*group);
}

/// Whoever initialised MPI keeps it.
void owned() {
  MPI_Init(nullptr, nullptr);
  conformance();
  int finalised = 0;
  MPI_Finalized(&finalised);
  expect(finalised == 0, "a caller's MPI was finalised");
  int sum = 0;
  const int one = 1;
  MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  expect(sum == size, "a caller's MPI still works");
}

/// Receives of the next two calls are there before them, take nothing that goes in between, and are
/// taken back when the group ends.
void ahead() {
  {
    const auto group = dgc::make_mpi_group(60s);
    const int peers = group->size() - 1;
    const std::vector<std::byte> message(5000, std::byte{7});
    const std::uint64_t next[] = {6000, 7000};
    posted = 0;
    group->swap(message, 5000, next);
    expect(posted == 3 * peers, "two receives ahead of each peer");
    posted = 0;
    std::vector<float> values(1000, 1.0f);
    dgc::all_reduce(*group, values);
    expect(values[0] == static_cast<float>(group->size()), "a sum in between");
    for (int i = 0; i < 2; ++i) {
      posted = 0;
      const auto all = group->swap(message, next[i]);
      expect(posted == 0, "the receives were there");
      for (const dgc::Parcel& parcel : all) {
        expect(parcel.bytes.size() == 5000 && parcel.bytes[4999] == std::byte{7}, "the messages");
      }
    }
    // Room for less than what comes then: lengths go first.
    group->swap(message, 5000, std::span(next).first(1));
    const dgc::Traffic before = group->traffic();
    const auto all = group->swap(message, 10'000, next);
    expect((group->traffic() - before).messages_sent == 2 * static_cast<std::uint64_t>(peers),
           "lengths, then messages");
    expect(all[0].bytes.size() == 5000, "a message behind its length");
    cancelled = 0;
  }
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  expect(cancelled == 2 * (size - 1), "all receives are taken back");
}

void first_cause() {
  const auto group = dgc::make_mpi_group(60s);
  dgc::barrier(*group);
  if (group->rank() == 1) {
    group->fail(dgc::Error(dgc::ErrorCode::nonfinite_gradient, "compress", "'conv1'", "nan"));
  }
  try {
    dgc::barrier(*group);
  } catch (const dgc::Error& error) {
    const bool self = group->rank() == 1;
    expect(
        error.code() == (self ? dgc::ErrorCode::nonfinite_gradient : dgc::ErrorCode::peer_failed),
        error.what());
    expect(std::string(error.what()).find("'conv1': nan") != std::string::npos, error.what());
    expect(self || error.subject() == "rank 1", error.what());
    return;
  }
  throw std::runtime_error("a failed group went on");
}

/// A rank that stays away longer than the timeout. The caller owns MPI here: after a timeout the
/// library would not finalise it, and mpirun would end the job.
void stalled() {
  MPI_Init(nullptr, nullptr);
  const auto group = dgc::make_mpi_group(60s);
  dgc::barrier(*group);
  group->set_timeout(1s);
  if (group->rank() == 1) std::this_thread::sleep_for(3s);
  const auto start = std::chrono::steady_clock::now();
  try {
    std::vector<float> values(1000, 1.0f);
    dgc::all_reduce(*group, values);
  } catch (const dgc::Error& error) {
    expect(std::chrono::steady_clock::now() - start < 2s, "the deadline holds");
    expect(error.code() == dgc::ErrorCode::timeout || error.code() == dgc::ErrorCode::peer_failed,
           error.what());
    expect(std::string(error.what()).find("rank 1") != std::string::npos, error.what());
    return;
  }
  throw std::runtime_error("a stalled rank went unnoticed");
}

}  // namespace

// MPI lets programs stand in for its functions.
int MPI_Irecv(void* buffer, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
              MPI_Request* request) {
  ++posted;
  return PMPI_Irecv(buffer, count, type, source, tag, comm, request);
}
int MPI_Cancel(MPI_Request* request) {
  ++cancelled;
  return PMPI_Cancel(request);
}

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  try {
    if (what == "conformance") {
      conformance();
    } else if (what == "owned") {
      owned();
    } else if (what == "ahead") {
      ahead();
    } else if (what == "first_cause") {
      first_cause();
    } else if (what == "stalled") {
      stalled();
    } else {
      throw std::runtime_error("usage: test_mpi conformance|owned|ahead|first_cause|stalled");
    }
  } catch (const std::exception& error) {
    fmt::print("test_mpi: failed: {}\n", error.what());
    std::fflush(stdout);
    return 1;
  }
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) fmt::print("test_mpi: ok\n");
  if (what == "owned" || what == "stalled") MPI_Finalize();
  return 0;
}
