// GPUs that compute nothing, for fake tensors of the device cuda in a torch for CPUs: torch's
// autograd runs a backward pass in a thread per device, and asks for its streams; and a batch for a
// GPU goes into memory that CUDA pins. Loaded before torch, which looks for CUDA once.

#include <mutex>
#include <set>

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>

namespace {

constexpr c10::DeviceIndex kGpus = 4;
const c10::Device kFirst(c10::DeviceType::CUDA, 0);

struct Guard : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::DeviceIndex deviceCount() const noexcept override { return kGpus; }
  c10::Device exchangeDevice(c10::Device) const override { return kFirst; }
  c10::Device getDevice() const override { return kFirst; }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

std::mutex lock;
std::set<const void*> pinned;

void release(void* data) {
  std::lock_guard<std::mutex> hold(lock);
  pinned.erase(data);
  c10::free_cpu(data);
}

struct PinnedMemory : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    std::lock_guard<std::mutex> hold(lock);
    void* data = c10::alloc_cpu(bytes);
    pinned.insert(data);
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
} pinned_memory;

struct CUDAHooks : at::CUDAHooksInterface {  // torch finds it by this name
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  bool isPinnedPtr(const void* data) const override {
    std::lock_guard<std::mutex> hold(lock);
    return pinned.count(data) != 0;
  }
};

}  // namespace

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
}
namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks)
}
