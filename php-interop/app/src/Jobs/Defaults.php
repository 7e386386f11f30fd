<?php

namespace App\Jobs;

use App\Enums\Suit;
use Illuminate\Contracts\Queue\ShouldQueue;

/** Some properties equal their declared defaults, a few do not. */
class Defaults implements ShouldQueue
{
    use Queued;

    public $one = 1;

    public $text = 'unchanged';

    public $changed = 'unchanged';

    protected $list = ['a' => 1, 'b' => [2.0]];

    private $flag = true;

    public Suit $suit = Suit::Hearts;

    public $null;

    public ?int $nullable = null;

    public $zero = 0;

    public $empty = '';

    public $none = [];

    public function __construct()
    {
        $this->changed = 'changed';
        $this->zero = '0';
    }
}
