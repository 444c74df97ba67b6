"""The quickstart: one file, three kinds of work, nothing to set up.

Run it with `python examples/quickstart.py` and stop it with Ctrl-C.
"""

from dataclasses import dataclass
from itertools import count

from mega import App, JobContext, Lock

app = App("quickstart")
numbers = count(1)


@dataclass
class Greeting:
    name: str
    number: int


@app.job("greeting.send", retries=3, concurrency=10)
async def send_greeting(greeting: Greeting, ctx: JobContext) -> str:
    """A job: stored by the server, run by a worker, run again when it fails."""
    if greeting.number % 3 == 0 and ctx.attempt == 1:
        raise ConnectionError("the mail server hung up; the retry will get through")
    text = f"hello {greeting.name}, this is greeting {greeting.number}"
    print(f"job      {text} (attempt {ctx.attempt})", flush=True)
    return text


@app.cpu_task(timeout=30)
def count_primes(limit: int) -> int:
    """A CPU task: runs in a process of its own, so that nothing else waits for it."""
    sieve = bytearray([1]) * limit
    for number in range(2, int(limit**0.5) + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, limit, number)))
    return sum(sieve) - 2


@app.schedule(every=2, lock=Lock(ttl=10))
async def tick() -> None:
    """A schedule: runs once per tick, however many processes serve this file."""
    number = next(numbers)
    print(f"schedule tick {number}", flush=True)
    await app.enqueue(send_greeting, Greeting("Ada", number))
    primes = await count_primes.run(1_000_000)
    print(f"cpu      {primes} primes below a million", flush=True)


if __name__ == "__main__":
    app.run()
