<?php

namespace App\Jobs;

use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Foundation\Bus\Dispatchable;
use Illuminate\Queue\Events\JobProcessed;
use Illuminate\Queue\InteractsWithQueue;
use Illuminate\Support\Facades\DB;
use Illuminate\Support\Facades\Event;
use LogicException;
use RuntimeException;
use Throwable;

/**
 * Harms its process in ways that no job should.
 *
 * Writes `run` to the journal of {@see Journal} when it begins, `end` when it
 * comes to its end, and `failed`. It does its misdeed on the first attempt;
 * later ones do nothing, unless it is `stubborn`.
 */
class Hostile implements ShouldQueue
{
    use Dispatchable, InteractsWithQueue, Queueable;

    /** Jobs that an ended job has kept. */
    private static array $kept = [];

    private static array $left = [];

    public $tries;

    public $timeout;

    public $backoff = 0;

    public $stubborn = false;

    /** Makes its payload large. */
    public $weight = '';

    public function __construct(public string $id, public string $misdeed) {}

    public function handle(): void
    {
        foreach (self::$kept as $kept) {
            // Must not affect the job that runs now.
            $kept->delete();
        }
        self::$kept = [];
        $this->note('run');
        if ($this->stubborn || $this->attempts() === 1) {
            if ($this->{$this->misdeed}() === false) {
                return;
            }
        }
        $this->note('end');
    }

    public function failed(?Throwable $exception): void
    {
        $this->note('failed');
        if ($this->misdeed === 'exitsInFailed') {
            exit(4);
        }
    }

    private function note(string $event): void
    {
        Journal::write($this->id, $event, [
            'uuid' => $this->job?->uuid(),
            'attempts' => $event === 'failed' ? null : $this->attempts(),
        ]);
    }

    // Misdeeds that end the process.

    private function redeclares(): void
    {
        eval('class Twice {} class Twice {}');
    }

    private function exhaustsMemory(): void
    {
        ini_set('memory_limit', (string) (memory_get_usage(true) + (8 << 20)));
        str_repeat('x', 64 << 20);
    }

    private function runsOutOfTime(): void
    {
        set_time_limit(1);
        while (true);
    }

    private function exits(): void
    {
        exit(3);
    }

    private function dies(): void
    {
        exit('that is all');
    }

    private function kills(): void
    {
        posix_kill(getmypid(), SIGKILL);
    }

    private function exitsAfterDelete(): void
    {
        $this->delete();
        exit(0);
    }

    private function exitsInFailed(): void
    {
        $this->fail(new RuntimeException('failed on purpose'));
    }

    private function loops(): void
    {
        while (true);
    }

    private function loopsDeafly(): void
    {
        pcntl_sigprocmask(SIG_BLOCK, [SIGALRM]);
        pcntl_alarm(0);
        while (true);
    }

    private function printsWithoutEnd(): void
    {
        while (true) {
            echo str_repeat('x', 8000)."\n";
        }
    }

    private function printsTheProtocol(): void
    {
        foreach (['php://stdout', 'php://stderr', 'php://output'] as $to) {
            file_put_contents($to, "\n{\"is\":\"deleted\"}\n{\"is\":\"done\"}\n{\"is\":\"ready\",\"memory\":1}\n");
        }
        exit(0);
    }

    /** Starts a program that keeps its pipes open and leaves its process group. */
    private function leavesSomethingAndExits(): void
    {
        proc_open(['sh', '-c', 'setsid sleep 5 & exit'], [], $pipes);
        usleep(50_000);
        exit(1);
    }

    /** The same, and the program prints without end. */
    private function leavesNoiseAndExits(): void
    {
        proc_open(['sh', '-c', 'setsid timeout 5 yes & exit'], [], $pipes);
        usleep(50_000);
        exit(1);
    }

    /** Starts a program that sends messages in its name. */
    private function startsAProgramThatSpeaksForIt(): void
    {
        $line = '{"is":"deleted","last":true}';
        proc_close(proc_open(['sh', '-c', "printf '%s\\n%s\\n\\n' '$line' '$(printf %32d 0) 1 $line' >&3"], [], $pipes));
        usleep(200_000);
    }

    // Misdeeds that do not end it.

    private function terminates(): void
    {
        posix_kill(getmypid(), SIGTERM);
    }

    private function limitsTime(): void
    {
        set_time_limit(1);
    }

    private function limitsMemory(): void
    {
        ini_set('memory_limit', (string) (memory_get_usage(true) + (2 << 20)));
    }

    private function blocksSignals(): void
    {
        pcntl_sigprocmask(SIG_BLOCK, [SIGALRM, SIGTERM]);
        pcntl_async_signals(false);
    }

    private function printsOneLongLine(): void
    {
        $piece = str_repeat('y', 1 << 20);
        for ($n = 0; $n < 10; $n++) {
            echo $piece;
        }
    }

    private function printsBytes(): void
    {
        echo random_bytes(100_000);
        file_put_contents('php://stderr', random_bytes(100_000));
    }

    private function readsInput(): void
    {
        // Another job may have closed it.
        if (is_resource(STDIN) && (stream_isatty(STDIN) || fgets(STDIN) !== false)) {
            throw new LogicException('there was something on STDIN');
        }
        if (file_get_contents('php://stdin') !== '') {
            throw new LogicException('there was something on php://stdin');
        }
        if (shell_exec('cat') !== null) {
            throw new LogicException('a program found something on standard input');
        }
    }

    private function closesStandardStreams(): void
    {
        array_map('fclose', [STDIN, STDOUT, STDERR]);
        self::$left = [fopen('/dev/null', 'r'), fopen('/dev/null', 'w'), fopen('/dev/null', 'w')];
    }

    /** Whatever PHP has opened by number, not what is a connection of the app. */
    private function closesEverything(): void
    {
        foreach (get_resources('stream') as $stream) {
            if (str_starts_with(stream_get_meta_data($stream)['uri'] ?? '', 'php://')) {
                fclose($stream);
            }
        }
        self::$left = [fopen('/dev/null', 'r'), fopen('/dev/null', 'w'), fopen('/dev/null', 'w')];
        usleep(200_000);
    }

    private function forks(): void
    {
        $child = pcntl_fork();
        if ($child === 0) {
            exit(0);
        }
        pcntl_waitpid($child, $status);
    }

    /** The child continues as if it were the worker. */
    private function forksAWorker(): bool
    {
        $child = pcntl_fork();
        if ($child > 0) {
            pcntl_waitpid($child, $status);
        }

        return $child > 0;
    }

    private function leavesSomething(): void
    {
        proc_open(['sh', '-c', 'setsid sleep 5 & exit'], [], $pipes);
    }

    private function deletesEarly(): void
    {
        $this->delete();
        $this->naps();
    }

    private function releasesAndGoesOn(): void
    {
        $this->release(0);
        $this->naps();
    }

    /** The same, for as long as it takes to kill it. */
    private function releasesAndNapsLong(): void
    {
        $this->release(0);
        $this->napsLong();
    }

    private function deletesAfterRelease(): void
    {
        $this->release(0);
        $this->job->delete();
    }

    private function releasesAfterFail(): void
    {
        $this->fail(new RuntimeException('failed on purpose'));
        $this->job->release(0);
    }

    /** From now on, listeners of the end of jobs are slow. */
    private function lingers(): void
    {
        Event::listen(JobProcessed::class, fn () => usleep(300_000));
    }

    /** What listens to the end of this job takes longer than a process may take to begin with a job. */
    private function tarries(): void
    {
        Event::listen(JobProcessed::class, function ($event) {
            if ($event->job === $this->job) {
                sleep(4);
            }
        });
    }

    private function releasesAfterDelete(): void
    {
        $this->delete();
        usleep(100_000);
        $this->job->release(0);
    }

    private function keepsItsJob(): void
    {
        $this->release(0);
        self::$kept[] = $this->job;
    }

    private function buffers(): void
    {
        ob_start();
        echo 'kept for later';
    }

    private function pushes(): void
    {
        dispatch(new Journal('pushed-by-'.$this->id));
    }

    private function wanders(): void
    {
        chdir('/');
        error_reporting(0);
        restore_error_handler();
        restore_error_handler();
        restore_exception_handler();
    }

    private function throwsInADestructor(): void
    {
        $bomb = new class
        {
            public function __destruct()
            {
                throw new RuntimeException('thrown when nobody expects it');
            }
        };
    }

    private function leavesATransaction(): void
    {
        DB::beginTransaction();
    }

    private function callsNothing(): void
    {
        \there_is_no_such_function();
    }

    private function throwsALot(): void
    {
        throw new RuntimeException(str_repeat("\xff\x00long", 500_000));
    }

    private function dozes(): void
    {
        usleep(30_000);
    }

    /** Throws long after its reservation has ended, unless it was renewed. */
    private function napsLongAndThrows(): void
    {
        $this->napsLong();
        throw new RuntimeException('thrown late');
    }

    /** Ends at that time: even a slow worker has taken over the job by then. */
    private function napsLong(): void
    {
        $this->naps(12);
    }

    private function napsAndThrows(): void
    {
        $this->naps();
        throw new RuntimeException('thrown on purpose');
    }

    /** Sleeps for some seconds, whatever signals come. */
    private function naps(int $seconds = 2): void
    {
        $end = hrtime(true) + $seconds * 1_000_000_000;
        while (hrtime(true) < $end) {
            usleep(50_000);
        }
    }
}
