<?php

namespace App;

use App\Events\ArticleRead;
use App\Events\OrderShipped;
use App\Events\ScoreChanged;
use App\Jobs as J;
use App\Mail\OrderConfirmation;
use App\Models\Document as DocumentModel;
use App\Models\Post;
use App\Models\User;
use App\Notifications\InvoicePaid;
use Closure;
use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Broadcasting\Factory as Broadcasting;
use Illuminate\Queue\Middleware\WithoutOverlapping;
use Illuminate\Support\Carbon;
use Illuminate\Support\Facades\Artisan;
use Illuminate\Support\Facades\Bus;
use Illuminate\Support\Facades\Context;
use Illuminate\Support\Facades\Mail;
use Illuminate\Support\Facades\Notification;
use Illuminate\Support\Facades\Queue;
use Illuminate\Support\Str;
use InvalidArgumentException;

/**
 * One kind of queued thing per name.
 *
 * An entry of category `job` builds the job object; entries of the other
 * categories dispatch themselves, to the given queue or else
 * where Laravel would.
 */
final class Catalogue
{
    /** @return array<string, array{string, Closure}> kind => category, closure */
    private static function entries(): array
    {
        static $entries;

        return $entries ??= [
            'plain' => ['job', fn () => new J\Plain],
            'nothing' => ['job', fn () => new J\Nothing],
            'visibility' => ['job', fn () => new J\Visibility],
            'visibility-native' => ['job', fn () => new J\VisibilityNative],
            'typed' => ['job', fn () => new J\Typed],
            'promoted' => ['job', fn () => new J\Promoted('given')],
            'enums' => ['job', fn () => new J\Enums],
            'dates' => ['job', fn () => new J\Dates],
            'intervals' => ['job', fn () => new J\Intervals],
            'nested-objects' => ['job', fn () => new J\NestedObjects],
            'shared-reference' => ['job', fn () => new J\SharedReference],
            'shared-reference-native' => ['job', fn () => new J\SharedReferenceNative],
            'php-reference' => ['job', fn () => new J\PhpReference],
            'php-reference-native' => ['job', fn () => new J\PhpReferenceNative],
            'cycle' => ['job', fn () => new J\Cycle],
            'cycle-to-job' => ['job', fn () => new J\CycleToJob],
            'cycle-to-job-native' => ['job', fn () => new J\CycleToJobNative],
            'cycle-of-array' => ['job', fn () => new J\CycleOfArray],
            'floats' => ['job', fn () => new J\Floats],
            'integers' => ['job', fn () => new J\Integers],
            'unicode' => ['job', fn () => new J\Unicode],
            'nul-text' => ['job', fn () => new J\NulText],
            'megabyte' => ['job', fn () => new J\Megabyte],
            'large-list' => ['job', fn () => new J\LargeList],
            'deep-nesting' => ['job', fn () => new J\DeepNesting],
            'array-keys' => ['job', fn () => new J\ArrayKeys],
            'defaults' => ['job', fn () => new J\Defaults],
            'magic' => ['job', fn () => new J\Magic],
            'custom' => ['job', fn () => new J\Custom],
            'uuids' => ['job', fn () => new J\Uuids],
            'support-objects' => ['job', fn () => new J\SupportObjects],
            'no-traits' => ['job', fn () => new J\NoTraits],
            'no-serializes-models' => ['job', fn () => new J\NoSerializesModels],

            'delayed' => ['job', fn () => (new J\Plain(1))->delay(2)],
            'delayed-date' => ['job', fn () => (new J\Plain(2))->delay(Carbon::now()->addSeconds(3))],
            'delayed-interval' => ['job', fn () => (new J\Plain(3))->delay(new \DateInterval('PT4S'))],
            'on-connection' => ['job', fn () => (new J\Plain(4))->onConnection('redis')],
            'retrying' => ['job', fn () => new J\Retrying],
            'retrying-set' => ['job', fn () => new J\RetryingSet],
            'timeout' => ['job', fn () => new J\TimeoutJob],
            'retry-until' => ['job', fn () => new J\RetryUntil],
            'max-exceptions' => ['job', fn () => new J\MaxExceptions],
            'attributes' => ['job', fn () => new J\Attributes],
            'display-name' => ['job', fn () => new J\DisplayName(7)],
            'middleware' => ['job', fn () => (new J\Middleware)->through([(new WithoutOverlapping('key'))->releaseAfter(5)])],
            'unique' => ['job', fn () => new J\Unique((string) Str::uuid())],
            'encrypted' => ['job', fn () => new J\Encrypted('s3cret', 12.0)],
            'encrypted-bytes' => ['job', fn () => new J\EncryptedBytes],

            'model' => ['job', fn () => new J\WithModel(User::findOrFail(1))],
            'model-delete-when-missing' => ['job', fn () => new J\ModelDeleteWhenMissing(User::findOrFail(2))],
            'model-properties' => ['job', fn () => new J\ModelProperties(
                User::findOrFail(1), DocumentModel::query()->firstOrFail()
            )],
            'model-collection' => ['job', fn () => new J\ModelCollection(
                User::query()->orderBy('id')->get(), User::query()->where('id', 0)->get(), Post::query()->orderBy('id')->get()
            )],
            'model-with-relations' => ['job', fn () => new J\ModelWithRelations(User::with('posts.comments')->findOrFail(1))],
            'model-inside' => ['job', fn () => new J\ModelInside(User::findOrFail(3))],

            'chain' => ['job', self::chain(...)],
            'chain-with-batch' => ['job', self::chainWithBatch(...)],
            'batch-member' => ['job', fn (?string $queue) => self::put(
                Bus::batch([new J\BatchMember(5)])->name('one member'), $queue
            )->dispatch()],
            'context' => ['job', self::withContext(...)],

            'listener' => ['listener', fn () => event(new OrderShipped(
                User::findOrFail(1), Carbon::parse('2026-01-02 03:04:05', 'UTC'), ['sku' => ['a', 'b'], 'sum' => 3.0]
            ))],
            'listener-method' => ['listener', fn () => event(new ArticleRead(12, 0.75))],
            'notification' => ['notification', fn (?string $queue) => Notification::send(
                User::findOrFail(1), self::put(new InvoicePaid(17, 12.5, Post::findOrFail(10)), $queue)
            )],
            'notification-anonymous' => ['notification', fn (?string $queue) => Notification::route('mail', 'zoë@example.com')
                ->notify(self::put(new InvoicePaid(18, 3.0), $queue))],
            'mailable' => ['mailable', fn (?string $queue) => Mail::to('ada@example.com')->cc([['email' => 'c@example.com', 'name' => 'Żaneta']])
                ->queue(self::put(new OrderConfirmation(User::findOrFail(1), 99), $queue))],
            'mailable-later' => ['mailable', fn (?string $queue) => Mail::to(User::findOrFail(2))
                ->later(5, self::put(new OrderConfirmation(User::findOrFail(2), 100), $queue))],
            'broadcast' => ['broadcast', fn () => app(Broadcasting::class)->queue(
                new ScoreChanged('Wisła', 3, ['minute' => 17, 'share' => 1.0])
            )],
            'command' => ['command', fn (?string $queue) => self::put(
                Artisan::queue('interop:note', ['text' => 'zażółć', '--times' => 2]), $queue
            )],
            'command-bare' => ['command', fn (?string $queue) => self::put(Artisan::queue('interop:note'), $queue)],
            'closure' => ['closure', self::closure(...)],
            'string' => ['string', fn (?string $queue) => Queue::push('App\Jobs\Legacy@run', [
                'int' => 1, 'big' => PHP_INT_MAX, 'float' => 1.5, 'whole' => 2.0, 'third' => 1 / 3, 'tiny' => 1e-7, 'huge' => 1e25,
                'text' => "zażółć \u{1F680} \u{2028} \"q\" \\ / </script>", 'nul' => "a\0b", 'empty' => [], 'list' => [1, [2, []]],
                'gaps' => [3 => 'x'], 'null' => null, 'bool' => false,
            ], $queue)],
            'string-fire' => ['string', fn (?string $queue) => Queue::push('App\Jobs\Legacy', '', $queue)],
            'string-delayed' => ['string', fn (?string $queue) => Queue::later(6, 'App\Jobs\Legacy@run', [1, 2.5], $queue)],
        ];
    }

    private static function chain(?string $queue): void
    {
        Bus::chain([
            new J\ChainMember(1, 'first'),
            new J\ChainMember(2),
            (new J\ChainMember(3, 'a queue of its own'))->onQueue('other')->delay(1),
            new J\NoSerializesModels,
        ])->onQueue($queue ?? 'default')->dispatch();
    }

    /** From Laravel 10.31 on; before, a chain without the batch. */
    private static function chainWithBatch(?string $queue): void
    {
        $batch = class_exists(\Illuminate\Bus\ChainedBatch::class)
            ? [Bus::batch([new J\BatchMember(6), new J\BatchMember(7)])->name('inside a chain')] : [];

        Bus::chain([new J\ChainMember(1, 'before the batch'), ...$batch, new J\ChainMember(2)])
            ->onQueue($queue ?? 'default')->dispatch();
    }

    /** From Laravel 11 on; before, a plain job. */
    private static function withContext(?string $queue): void
    {
        if (class_exists(Context::class)) {
            Context::add('tenant', 7);
            Context::add('share', 1.0);
            Context::addHidden('token', 'żeton');
        }
        try {
            self::put(dispatch(new J\Plain(8)), $queue);
        } finally {
            if (class_exists(Context::class)) {
                Context::flush();
            }
        }
    }

    private static function closure(?string $queue): void
    {
        $text = 'captured';
        self::put(dispatch(function () use ($text) {
            Seen::record(['class' => 'Closure', 'text' => $text]);
        }), $queue);
    }

    /**
     * @template T of object
     *
     * @param  T  $what
     * @return T
     */
    private static function put(object $what, ?string $queue): object
    {
        if ($queue !== null) {
            $what->onQueue($queue);
        }

        return $what;
    }

    /** @return list<string> */
    public static function kinds(string $which = 'all'): array
    {
        if ($which === 'all') {
            return array_keys(self::entries());
        }
        if (! isset(self::entries()[$which])) {
            throw new InvalidArgumentException(
                "no kind `$which` (known: all, ".implode(', ', array_keys(self::entries())).')'
            );
        }

        return [$which];
    }

    /** @return array<string, Closure> what only makes a job object */
    public static function recipes(): array
    {
        $jobs = array_filter(self::entries(), fn (string $kind) => self::isRecipe($kind), ARRAY_FILTER_USE_KEY);

        return array_map(fn (array $entry) => $entry[1], $jobs);
    }

    /** A method of category `job` without arguments makes a job. */
    private static function isRecipe(string $kind): bool
    {
        return self::category($kind) === 'job'
            && (new \ReflectionFunction(self::entries()[$kind][1]))->getNumberOfParameters() === 0;
    }

    public static function category(string $kind): string
    {
        return self::entries()[$kind][0];
    }

    /** Dispatches one of a kind. */
    public static function dispatch(string $kind, ?string $queue = null): void
    {
        $made = self::entries()[$kind][1];
        Routing::$queue = $queue;

        if (! self::isRecipe($kind)) {
            $made($queue);

            return;
        }
        $job = $made();
        if (in_array(Queueable::class, class_uses_recursive($job), true)) {
            self::put(dispatch($job), $queue);
        } else {
            Queue::push($job, '', $queue);
        }
    }
}
