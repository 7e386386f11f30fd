<?php

namespace App\Jobs;

use App\Enums\Priority;
use App\Models\User;
use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Queue\SerializesModels;

class Typed implements ShouldQueue
{
    use Queueable;
    use SerializesModels;

    public ?User $user = null;

    public int $count;

    public int|string|null $mixed = 0;

    protected Priority $priority = Priority::High;

    public float $ratio = 0.1;

    public function __construct(public readonly string $path, private array $options = [], public $loose = 1)
    {
        $this->count = 1;
    }

    public function handle()
    {
    }
}
