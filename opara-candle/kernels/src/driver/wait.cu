// Keeps the stream busy with one thread, so that the host can queue the launches that follow.

extern "C" __global__ void opara_wait(unsigned long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}
