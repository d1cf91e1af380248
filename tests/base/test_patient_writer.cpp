#include "base/patient_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <thread>

namespace {

/// Both ends of a pipe; reading does not wait.
struct Pipe {
  Pipe() {
    EXPECT_EQ(::pipe(ends), 0);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  std::string read() const {
    std::string text;
    char block[4096];
    for (ssize_t n; (n = ::read(ends[0], block, sizeof block)) > 0;) {
      text.append(block, static_cast<std::size_t>(n));
    }
    return text;
  }
  int ends[2];
};

std::string numbered(int i) { return fmt::format("line {:60}\n", i); }

TEST(PatientWriter, KeepsWhatAPausedReaderDoesNotTake) {
  const Pipe pipe;
  std::string all, got;
  {
    dgc::PatientWriter writer(pipe.ends[1]);
    for (int i = 0; i < 5000; ++i) {  // five times what a pipe takes
      writer.put(numbered(i));
      all += numbered(i);
    }
    EXPECT_FALSE(writer.idle());
    while (!writer.idle()) got += pipe.read();
  }
  EXPECT_EQ(got + pipe.read(), all);
}

TEST(PatientWriter, KeepsTheLastMegabyteInWholeLines) {
  const Pipe pipe;
  std::string got;
  {
    dgc::PatientWriter writer(pipe.ends[1]);
    for (int i = 0; i < 40'000; ++i) writer.put(numbered(i));
    while (!writer.idle()) got += pipe.read();
  }
  got += pipe.read();
  EXPECT_LT(got.size(), (1 << 20) + (1 << 17));
  EXPECT_TRUE(got.starts_with(numbered(0)));
  EXPECT_TRUE(got.ends_with(numbered(39'998) + numbered(39'999)));
}

TEST(PatientWriter, WaitsForTheReaderAtTheEnd) {
  const Pipe pipe;
  std::string got;
  {
    std::jthread reader;
    dgc::PatientWriter writer(pipe.ends[1]);
    for (int i = 0; i < 5000; ++i) writer.put(numbered(i));
    reader = std::jthread([&] {
      while (!got.ends_with(numbered(4999))) got += pipe.read();
    });
  }
  EXPECT_TRUE(got.ends_with(numbered(4999)));
}

TEST(PatientWriter, AReaderWhoIsGoneIsNoError) {
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  {
    dgc::PatientWriter writer(ends[1]);
    writer.put("to nobody\n");
    EXPECT_TRUE(writer.idle());
  }
  ::close(ends[1]);
  std::signal(SIGPIPE, before);
}

}  // namespace
