<?php

namespace App\Jobs;

use App\Values\Node;

/** Refers, behind what a step of a chain replaces, to values before, in and behind it. */
class SharedAfter extends NoSerializesModels
{
    public $before;

    public $in;

    public $element;

    public $again;

    public $cycle;

    public $number;

    public function __construct()
    {
        $this->nothing = 'not null';
        $this->order = new Node('before');
        $this->before = $this->order;
        $this->chainCatchCallbacks = [$node = new Node('in'), $string = 'text'];
        $node->extra = [$node, $this->order];
        $this->in = [$node, 'again' => $node];
        $this->chained = ['x', &$string];
        $this->element = &$string;
        $this->again = ['element' => &$string, 'in' => $node];
        $this->cycle = new Node('behind');
        $this->cycle->next = $this->cycle;
        $this->cycle->extra = [$this->cycle, &$this->number];
        $this->number = 5;
    }
}
