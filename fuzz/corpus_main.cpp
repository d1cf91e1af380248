// Runs a fuzz target once for each of the given files and files of the given directories: what
// fuzzing has found stays tested by every compiler.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      files.emplace_back(argv[i]);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& file : files) {
    // Before the run, so that the last line names the input of a crash.
    std::printf("%s\n", file.c_str());
    std::fflush(stdout);
    // Not a byte more than the file has, so that the address sanitizer sees a read past its end.
    std::ifstream in(file, std::ios::binary);
    std::vector<char> contents(in ? std::filesystem::file_size(file) : 0);
    if (!in.read(contents.data(), static_cast<std::streamsize>(contents.size()))) {
      std::fprintf(stderr, "cannot read %s\n", file.c_str());
      return 1;
    }
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(contents.data()), contents.size());
  }
  std::printf("%zu inputs\n", files.size());
  return files.empty() ? 1 : 0;
}
