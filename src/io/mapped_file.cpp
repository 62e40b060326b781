// SPDX-License-Identifier: Apache-2.0
#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "headrace/error.h"

namespace headrace::io {
namespace {

/// What stands in the way of reading a file, in the order that people would check it.
[[noreturn]] void refuse(const std::filesystem::path& path, int error) {
  switch (error) {
    case ENOENT:
      if (std::error_code ignored; std::filesystem::is_symlink(path, ignored)) {
        throw Error(path.string(), "a file",
                    "a link to \"" + std::filesystem::read_symlink(path, ignored).string() + "\", which is not there");
      }
      throw Error(path.string(), "a file", "nothing: there is no file of this name");
    case ENOTDIR:
      throw Error(path.string(), "a file", "nothing: a part of the path is a file, not a folder");
    case EACCES:
      throw Error(path.string(), "a file that may be read", "one without permission to read it");
    default:
      throw Error(path.string(), "a file that can be read", "a failure: " + std::generic_category().message(error));
  }
}

class Descriptor {
 public:
  // Without O_NONBLOCK, opening a named pipe would wait for its writer before its kind can be checked.
  explicit Descriptor(const std::filesystem::path& path)
      : value_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (value_ < 0) {
      refuse(path, errno);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(value_); }

  [[nodiscard]] int value() const noexcept { return value_; }

 private:
  int value_;
};

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const Descriptor descriptor(path_);
  struct ::stat status {};
  if (::fstat(descriptor.value(), &status) != 0) {
    refuse(path_, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(path_.string(), "a file", S_ISDIR(status.st_mode) ? "a folder" : "a device, a pipe or a socket");
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) {
    return;  // an empty mapping is not allowed
  }
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor.value(), 0);
  if (data == MAP_FAILED) {
    refuse(path_, errno);
  }
  bytes_ = {static_cast<std::byte*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(bytes_.data(), bytes_.size());
  }
}

}  // namespace headrace::io
